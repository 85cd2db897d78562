"""What a release consists of: distributions, metadata, workflows, hooks and the files around them agree."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from feedmill.cli import precommit
from feedmill.kernels.interface import machine

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
    others = {name for name in names - sources if ".dist-info/" not in name}
    levels = {"x86_64": ("x86_64", "x86_64_v3")}.get(machine(), (machine(),))
    assert others == {f"feedmill/kernels/kernels.{level}.so" for level in levels}
    assert next(built.glob("*.whl")).name.startswith(f"feedmill-{PROJECT['version']}-py3-none-")
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
    "find_a_mixture": """
curves = names["curves"]
assert set(curves) == {"mix", "best"} and all(len(curve) == 5 for curve in curves.values()), curves
assert all(curve[-1]["prose"] < curve[0]["prose"] - 0.3 for curve in curves.values()), curves
best = feedmill.Recipe.load("best.yaml").plan()
assert best.names == feedmill.Recipe.load("mix.yaml").plan().names and len(Path("losses.csv").read_text().split()) == 13
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


NO_INDEX = ("Could not find a version", "No matching distribution", "Max retries exceeded", "Could not fetch URL")
"""What pip prints where it reaches no index that has the packages."""


def install(python: Path, *what: str) -> None:
    """Install as the page says, from the index that pip is configured with; skip where it reaches none."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "-c", str(ROOT / "constraints.txt"), *what], capture_output=True, text=True, timeout=1500
    )
    if done.returncode and any(text in done.stderr for text in NO_INDEX):
        pytest.skip(f"pip reaches no index with {' '.join(what)}: {done.stderr.strip().splitlines()[-1][:200]}")
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(RESULTS))
def test_a_tutorial_works_in_an_environment_that_has_what_it_names(
    page: str, built: Path, tmp_path: Path, free_port: int
) -> None:
    """A newcomer has the page, the wheel with the extras that the page names, and nothing of this environment."""
    text = (ROOT / f"docs/tutorials/{page}.md").read_text()
    extras = re.search(r"`pip install '\.(\[[a-z,]+\])'`", text)
    assert extras is not None
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = environment / "bin/python"
    others = [name.strip("'") for name in re.findall(r"`pip install ('[^.'][^']*')`", text)]
    install(python, f"{next(built.glob('*.whl'))}{extras[1]}", *others)
    (tmp_path / "work").mkdir()
    kept = ("HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")
    variables = {name: os.environ[name] for name in kept if name in os.environ}
    variables |= {"PATH": f"{environment / 'bin'}:/usr/bin:/bin", "PYTHONPATH": str(ROOT / "tests")}
    variables |= {"FEEDMILL_CACHE_DIR": str(tmp_path / "cache"), "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port}"}
    variables |= {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}
    variables |= {"AWS_DEFAULT_REGION": "us-east-1"}
    program = FOLLOW + RESULTS[page] + MISSING
    command = [str(python), "-c", program, str(ROOT / f"docs/tutorials/{page}.md"), str(environment)]
    with serving(re.search(r"`(moto_server) -p \d+`", text), environment, free_port, variables):
        done = subprocess.run(
            command, cwd=tmp_path / "work", env=variables, capture_output=True, text=True, timeout=900
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    shutil.rmtree(environment)  # a gigabyte


MISSING = """
from importlib.util import find_spec
assert find_spec("pytest") is None and find_spec("hypothesis") is None  # this is not the environment of development
"""


@contextlib.contextmanager
def serving(named: re.Match[str] | None, environment: Path, port: int, variables: dict[str, str]) -> Iterator[None]:
    """Run the server that a page names."""
    if named is None:
        yield
        return
    command = [str(environment / "bin" / named[1]), "-p", str(port)]
    server = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert server.poll() is None, "the server has ended"
            time.sleep(0.1)
        yield
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


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
