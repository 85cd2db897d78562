"""The documentation is true: every block runs, every link leads somewhere, every option and finding is described."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path

import pytest
import typer

from feedmill.cli import demo
from feedmill.cli.app import VERBS, app
from feedmill.cli.demo import Story
from feedmill.demo.sample_data import caption_files, questions, write_sample_data
from feedmill.errors import KINDS
from feedmill.storage import LocalStore
from helpers import foreign_datasets as sourcedata
from helpers import media_files as clips
from helpers.kinds import LISTED
from helpers.mixture_data import small_fits
from helpers.pages import LANGUAGES, Session, blocks
from helpers.robots import write_robot
from helpers.tars import write_tar

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GOLDEN = ROOT / "tests/golden"
TOKENS = {
    "books.pbin": "modalities/main_2b.pbin",
    "news.pbin": "modalities/crlf_2b.pbin",
    "books.jsonl": "modalities/main.jsonl",
    "news.jsonl": "modalities/crlf.jsonl",
    "chats.jsonl": "modalities/chat.jsonl",
}
IN_A_BUCKET = "docs/tutorials/webdataset_on_s3.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]


def names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data that the pages work on: `demo --data`, more of its kind, files of tokens, a tokenizer."""
    root = tmp_path_factory.mktemp("example")
    write_sample_data(LocalStore(root))
    for shard in range(6):
        split = "train" if shard < 4 else "val"
        files = caption_files(3 * shard, 3)
        write_tar(root / f"by_prefix/shards/{split}_shard_{shard:04d}.tar", files)
        write_tar(root / f"by_folder/shards/{split}/shard_{shard:05d}.tar", files)
    write_tar(root / "more/shard_0010.tar", caption_files(60, 6))
    for name, count in (("docs", 2000), ("code", 8000)):
        (root / f"{name}.jsonl").write_bytes(questions(count))
    shutil.copytree(ROOT / "tests" / "golden" / "nanosets" / "tok1k", root / "tokenizer")
    shutil.copytree(GOLDEN / "models/static", root / "models/topics")
    shutil.copytree(GOLDEN / "models/vision", root / "models/clip")
    texts = [json.dumps({"text": f"Document {i}. " + "It has a few words more. " * (i % 9)}) for i in range(300)]
    (root / "docs_text.jsonl").write_text("\n".join(texts))
    (root / "mixed.jsonl").write_text('{"text": "good"}\n{"text": null}\n{"text": "cut\n{"text": "good"}\n')
    for name, source in TOKENS.items():
        shutil.copyfile(GOLDEN / source, root / name)
    (root / "processor").mkdir()
    for name, content in json.loads((GOLDEN / "token_rules/qwen3_vl.json").read_text())["files"].items():
        (root / "processor" / name).write_text(json.dumps(content))
    add_sources(root)
    media_files(root)
    for name in ("text", "text_b", "image_caption", "text_untokenized", "text_doc", "robotics"):
        shutil.copytree(GOLDEN / "vla" / name, root / name, ignore=shutil.ignore_patterns("expected.json"))
    return root


def add_sources(root: Path) -> None:
    """Datasets of other tools."""
    for name in ("tables", "downloads"):
        (root / name).mkdir()
    sourcedata.parquet(root / "tables", [5, 4, 3])
    sourcedata.images(root / "downloads", [5, 4], "webdataset")
    sourcedata.lerobot_v3(root / "robot", [7, 5, 8], "observation.images.top")
    write_robot(
        root / "arm",
        fps=30,
        width=4,
        lengths=(30, 24),
        cameras={"cam_high": (24, 24)},
        extra={"idle": [n % 5 == 0 for n in range(54)]},
        episodes={"success": [True, True]},
    )
    shutil.copytree(GOLDEN / "sources/huggingface/dict", root / "saved")
    shutil.copytree(GOLDEN / "sources/mds/plain", root / "streaming")


def media_files(root: Path) -> None:
    """A folder of media, one of them cut short, and shards with videos."""
    photo = dict(caption_files(0, 1))["000000.jpg"]
    video = clips.movie("mp4", seconds=6.0)
    files = {"photos/one.jpg": photo, "photos/cut.jpg": photo[:200], "talk.mp4": video, "tone.wav": clips.sound("wav")}
    for name, data in {**files, "notes.txt": b"not media"}.items():
        (root / "media" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "media" / name).write_bytes(data)
    asked = [json.dumps({"question": f"What is in video {n}?", "answers": ["a gradient"]}).encode() for n in range(3)]
    shard = [(f"{n:04d}.{part}", data) for n in range(3) for part, data in (("mp4", video), ("json", asked[n]))]
    write_tar(root / "videos/0.tar", shard)


def demo_data(folder: Path) -> None:
    """What the first chapters of `make demo` leave: two datasets and a recipe."""
    story = Story(folder, quiet=True)
    demo._make(story, pages=20, docs=20)
    demo._prepare(story)
    demo._blend(story, samples=10)


def test_the_readme_fits_two_screens() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 100 and max(map(len, lines)) <= 130


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_the_page_runs(
    page: Path, example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if page == ROOT / IN_A_BUCKET:
        request.getfixturevalue("s3_bucket")  # the server and its keys; the page makes its own bucket
    if "mixture fit" in page.read_text():
        small_fits(monkeypatch)
    if any(block.language in ("python", "console") for block in blocks(page.read_text())):
        shutil.copytree(example, tmp_path / "work")
    else:
        (tmp_path / "work").mkdir()
    if page == ROOT / "README.md":
        demo_data(tmp_path / "work/demo-out")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    Session(page).run()


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_what_could_run_is_not_hidden_in_text(page: Path) -> None:
    for block in blocks(page.read_text()):
        assert block.language in LANGUAGES, f"line {block.line}: ```{block.language}"
        if block.language == "text":
            assert not re.search(r"^(\$ )?feedmill |^(import|from) feedmill", block.text, re.M), f"line {block.line}"


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(page: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    found = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [link for link in found if not link.startswith(("http://", "https://"))]


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_home_leads_to_every_page() -> None:
    """In the repository, where the site's navigation is not shown: by links, over any number of pages."""
    reached, ahead = {DOCS / "index.md"}, [DOCS / "index.md"]
    while ahead:
        page = ahead.pop()
        near = {(page.parent / link.partition("#")[0]).resolve() for link in links(page) if not link.startswith("#")}
        new = {path for path in near - reached if path.suffix == ".md"}
        reached |= new
        ahead += new
    assert set(DOCS.rglob("*.md")) <= reached


def options(*words: str) -> set[str]:
    """Every ``--option`` of a verb, but those that all verbs have and hidden ones."""
    command = typer.main.get_command(app)
    for word in words:
        command = command.get_command(None, word)  # type: ignore[attr-defined, arg-type]
    shown = [p for p in command.params if not getattr(p, "hidden", False)]
    found = {o for p in shown for o in [*p.opts, *p.secondary_opts] if o.startswith("--")}
    return found - {"--help", "--json", "--progress", "--no-progress"}


MODALITIES = [
    "create_raw_index",
    "pack_encoded_data",
    "create_shuffled_dataset_chunk",
    "create_shuffled_jsonl_chunk",
    "merge_packed_data",
    "shuffle_tokenized_data",
    "shuffle_jsonl_data",
    "prepare_instruction_tuning_data",
]
DESCRIBED_IN = {
    ("prepare",): "prepare.md",
    ("check",): "check.md",
    ("edit", "repair"): "check.md",
    ("show",): "prepare.md",
    ("edit", "reshard"): "writing.md",
    ("edit", "append"): "writing.md",
    ("edit", "delete"): "writing.md",
    ("edit", "add-parts"): "writing.md",
    ("edit", "mount"): "writing.md",
    ("documents", "extract"): "extract.md",
    ("tag",): "tagging.md",
    ("documents", "stat"): "stat.md",
    ("documents", "embed"): "neardedupe.md",
    ("dedupe",): "dedupe.md neardedupe.md",
    ("filter",): "filter.md",
    ("tokenize",): "tokenize.md",
    ("tokens", "decode"): "tokenize.md",
    ("convert",): "convert.md",
    ("plan",): "ledger.md",
    ("trace",): "ledger.md",
    ("bench",): "loading.md",
    ("cache",): "storage.md",
    ("tokens", "index"): "tokens.md",
    ("tokens", "merge"): "tokens.md",
    ("tokens", "shuffle"): "tokens.md",
    ("tokens", "split"): "tokens.md",
    ("tokens", "numbers"): "tokens.md",
    ("tokens", "lengths"): "media.md",
    ("mixture", "cells"): "mixtures.md",
    ("mixture", "propose"): "mixtures.md",
    ("mixture", "fit"): "mixtures.md",
    ("mixture", "compare"): "mixtures.md",
    **{("compat", "modalities", "data", name): "migration/modalities.md" for name in MODALITIES},
    ("edit", "prepare-media"): "media.md",
    ("compat", "energon", "prepare"): "internals/energon.md",
    ("compat", "energon", "prepare-media"): "internals/energon.md",
    ("compat", "energon", "lint"): "internals/energon.md",
    ("compat", "energon", "preview"): "internals/energon.md",
    ("compat", "energon", "mount"): "internals/energon.md",
    **{("compat", "vla", name): "vla.md" for name in ("manifest", "stats", "windows", "merge-stats", "plan")},
}


@pytest.mark.parametrize(("verb", "page"), DESCRIBED_IN.items(), ids=map(" ".join, DESCRIBED_IN))
def test_every_option_is_described(verb: tuple[str, ...], page: str) -> None:
    text = "".join((DOCS / one).read_text() for one in (*page.split(), "engines.md"))
    assert not [option for option in options(*verb) if f"`{option}" not in text and f"{option}`" not in text]


def test_every_verb_is_on_the_page_of_the_command_line() -> None:
    text = (DOCS / "command_line.md").read_text()
    assert all(f"`feedmill {verb}" in text for verb in VERBS)


def kinds(path: str) -> set[str]:
    """The kinds of findings that a module can give: its ``kind="..."`` arguments, defaults included."""
    tree = ast.parse((ROOT / "src" / "feedmill" / path).read_text())
    words = {w.value for w in ast.walk(tree) if isinstance(w, ast.Constant) and isinstance(w.value, str)}
    return words & {*LISTED} - {*KINDS["Looking up"], "exists"}


@pytest.mark.parametrize(
    "module",
    [
        "indexing/check.py",
        "indexing/manifests.py",
        "indexing/scanning.py",
        "kernels/files/tar.py",
        "formats/jsonl/dataset.py",
        "formats/jsonl/index.py",
        "formats/tar/dataset.py",
    ],
)
def test_every_finding_is_described(module: str) -> None:
    text = (DOCS / "check.md").read_text()
    found = kinds(module)
    assert found and not [kind for kind in found if f"`{kind}`" not in text]
