"""What a release consists of: distributions, metadata, workflows, hooks and the files around them agree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from feedmill.cli import precommit

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_IN_IT = {".gitignore", ".git-blame-ignore-revs"}
BUILD = "import sys; from setuptools import build_meta as b; o = sys.argv[1]; b.build_sdist(o); b.build_wheel(o)"


def read(path: str) -> object:
    return yaml.safe_load((ROOT / path).read_text())


def tracked() -> set[str]:
    """The files of the repository; a source distribution has no repository, and is not asked."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("this is no repository")
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the distributions, built from a copy of the repository."""
    copy = tmp_path_factory.mktemp("release") / "copy"
    for name in tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy / name)
    out = copy.parent / "dist"
    out.mkdir()
    done = subprocess.run([sys.executable, "-c", BUILD, str(out)], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return out


@pytest.mark.slow
def test_the_source_distribution_is_the_repository(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as tar:
        names = {member.name.partition("/")[2] for member in tar if member.isfile()}
    assert not tracked() - NOT_IN_IT - names
    extra = {name for name in names - tracked() if ".egg-info/" not in name}
    assert extra == {"PKG-INFO", "setup.cfg"}


@pytest.mark.slow
def test_the_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    sources = {name.removeprefix("src/") for name in tracked() if name.startswith("src/")}
    assert sources <= names
    assert {name for name in names - sources if ".dist-info/" not in name} == set()
    assert "Author: Feedmill developers" in metadata
    assert len(re.findall("^Project-URL: ", metadata, re.M)) == len(PROJECT["urls"])


@pytest.mark.slow
def test_tests_run_from_the_unpacked_source_distribution(built: Path, tmp_path: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as tar:
        tar.extractall(tmp_path, filter="data")
    folder = next(tmp_path.iterdir())
    chosen = ["tests/formats/test_wids.py", "tests/test_public_face.py", "tests/test_environment.py", "tests/docs"]
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "-m", "not slow", *chosen]
    variables = os.environ | {"PYTHONPATH": str(folder / "src")}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 100


FOLLOW = """
import sys
from pathlib import Path
import feedmill
from helpers.pages import Session
assert Path(feedmill.__file__).is_relative_to(sys.argv[2]), feedmill.__file__
session = Session(Path(sys.argv[1]))
session.run()
names = session.names
"""
RESULTS = {
    "text_to_gpt": """
import torch
losses, saved = names["losses"], torch.load("checkpoint.pt", weights_only=True)
assert len(losses) == 60 and sum(losses[20:30]) < sum(losses[:10]) - 5, losses
assert abs(sum(losses[30:40]) - sum(losses[20:30])) < 5, losses  # what the model had learned is there after the resume
whole = feedmill.Loader("gpt.yaml", 8, rank=0, world_size=1, output="torch")
rows = torch.cat([batch["inputs"] for _, batch in zip(range(32), whole)])
resumed = feedmill.Loader("gpt.yaml", 4, rank=0, world_size=1, output="torch")
resumed.load_state_dict(saved["loader"])
again = torch.cat([batch["inputs"] for _, batch in zip(range(4), resumed)])
assert again.shape == (16, 127) and torch.equal(again, rows[240:256]), again.shape
""",
    "images_and_captions": """
import torch
batch = next(iter(feedmill.Loader("cards", 8, rank=0, world_size=1)))
assert len(batch["caption"]) == 8 and all(text.endswith(" card") for text in batch["caption"]), batch["caption"]
assert len(names["losses"]) == 36 and names["questions"] == 32 and names["losses"][-1] < names["losses"][0] / 2
def taken(loader, count):
    return [[*batch["label"]] if "label" in batch else batch["text"] for _, batch in zip(range(count), loader)]
options = {"rank": 0, "world_size": 1, "transform": names["augment"], "output": "torch"}
whole = feedmill.Loader("cards.yaml", 8, **options)
taken(whole, 40)
resumed = feedmill.Loader("cards.yaml", 8, **options)
resumed.load_state_dict(names["saved"])
assert str(taken(resumed, 5)) == str(taken(whole, 5))
""",
    "webdataset_on_s3": """
assert len(names["whole"]) == 480 and names["whole"] == names["first"] + names["rest"]
assert len(set(names["whole"])) > 5, set(names["whole"])
""",
}
"""What the project of each page has to have reached, in the page's own names."""


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(RESULTS))
def test_a_tutorial_works_with_the_wheel_in_an_empty_folder(
    page: str, built: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("torch")
    if page == "webdataset_on_s3":
        request.getfixturevalue("s3_bucket")
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "installed")
    (tmp_path / "work").mkdir()
    paths = os.pathsep.join([str(tmp_path / "installed"), str(ROOT / "tests")])
    variables = os.environ | {"PYTHONPATH": paths, "FEEDMILL_CACHE_DIR": str(tmp_path / "cache")}
    command = [
        sys.executable,
        "-c",
        FOLLOW + RESULTS[page],
        str(ROOT / f"docs/tutorials/{page}.md"),
        str(tmp_path / "installed"),
    ]
    done = subprocess.run(command, cwd=tmp_path / "work", env=variables, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_all_files_name_one_version() -> None:
    import feedmill

    citation = read("CITATION.cff")
    assert isinstance(citation, dict)
    assert citation["version"] == PROJECT["version"] == feedmill.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"] == [{"name": "Feedmill developers"}]
    assert re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M) == ["Unreleased", PROJECT["version"]]


def test_the_workflows_test_every_python_that_is_named() -> None:
    jobs = read(".github/workflows/ci.yml")["jobs"]  # type: ignore[index]
    assert set(jobs) == {"test", "lint", "docs", "wheel"}
    matrix = jobs["test"]["strategy"]["matrix"]
    named = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", name)]
    assert matrix["python"] == named
    assert {(row["os"].partition("-")[0], row["python"]) for row in matrix["include"]} >= {("ubuntu", "3.14")}
    assert "macos" in {row["os"].partition("-")[0] for row in matrix["include"]}
    makefile = (ROOT / "Makefile").read_text()
    all_jobs = [*jobs.values(), *read(".github/workflows/nightly.yml")["jobs"].values()]  # type: ignore[index]
    steps = [step.get("run", "") for job in all_jobs for step in job["steps"]]
    targets = {step.split()[1] for step in steps if step.startswith("make ")}
    assert targets == {"test", "lint", "docs", "test-all"}
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets)


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_workflows_and_templates_are_valid_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


@pytest.mark.parametrize("path", ["Dockerfile", "examples/cluster/Dockerfile"])
def test_images_install_extras_that_exist(path: str) -> None:
    text = (ROOT / path).read_text()
    extras = re.search(r"(?:EXTRAS=|\"\.\[)([\w,]+)", text)
    assert extras and set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
    copied = re.findall(r"^COPY ((?:[\w.]+ )+)(?:\./|src)$", text, re.M)
    assert all((ROOT / name).exists() for names in copied for name in names.split())


def test_the_extras_of_users_are_few() -> None:
    extras = PROJECT["optional-dependencies"]
    named = set(re.findall(r"^\| `([a-z]+)` \|", (ROOT / "docs/limits.md").read_text(), re.M))
    assert named == {"media", "tokenize", "curation", "torch", "ray", "web", "all"} <= set(extras)
    others = set(extras) - named - {"dev", "docs"}
    text = (ROOT / "docs/limits.md").read_text()
    assert all(f"`{extra}`" in text for extra in others)


def test_a_message_about_an_extra_works_for_an_installation_from_a_clone() -> None:
    """pip takes the installed distribution for the name, and asks no index for it."""
    pytest.importorskip("pip")
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--dry-run", "--no-deps", "feedmill[media]"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0 and "already satisfied" in done.stdout, done.stdout + done.stderr


def test_the_hooks_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hooks = read(".pre-commit-hooks.yaml")
    assert isinstance(hooks, list) and {hook["id"] for hook in hooks} == {"feedmill-recipes", "feedmill-check"}
    files = next(hook["files"] for hook in hooks if hook["id"] == "feedmill-recipes")
    texts = {
        "recipe.yaml": "source: no_such_data\n",
        "filter.yaml": "streams: [{name: a, documents: [x], output: {path: y}}]\n",
        "bad_recipe.yaml": "sauce: x\n",
        "bad_filter.yml": "streams: []\n",
        "recipe_cut.yaml": "blend: [\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        assert re.search(files, name)
    assert precommit.main([str(tmp_path / name) for name in list(texts)[:2]]) == 0
    assert capsys.readouterr().err == ""
    assert precommit.main([str(tmp_path / name) for name in [*texts, "absent.yaml"]]) == 1
    errors = capsys.readouterr().err
    for name in ("bad_recipe.yaml", "bad_filter.yml", "recipe_cut.yaml", "absent.yaml"):
        assert errors.count(f"/{name}") == 1, errors
