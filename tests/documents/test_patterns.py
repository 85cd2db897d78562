"""Which files a pattern means, and where their attributes belong."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedmill.curation.tag import common_folder
from feedmill.documents.file import DocumentFile, attribute_root, once
from feedmill.documents.find import find_documents
from feedmill.errors import ConfigError, NotFound
from feedmill.storage import open_store


def find_inputs(patterns: list[str], exact: bool = True) -> list[DocumentFile]:
    return once(find_documents(patterns, exact=exact).files)


FILES = ("a.jsonl", "sub/b.jsonl.gz", "sub/deep/c.jsonl.gz", "sub/deep/d.txt", ".hidden/e.jsonl", "sub/.f.jsonl")
PATTERNS = {
    "*": ["a.jsonl"],
    "**/*": ["a.jsonl", "sub/b.jsonl.gz", "sub/deep/c.jsonl.gz", "sub/deep/d.txt"],
    "**/*.gz": ["sub/b.jsonl.gz", "sub/deep/c.jsonl.gz"],
    "sub/*.gz": ["sub/b.jsonl.gz"],
    "s?b/deep/[cd].*": ["sub/deep/c.jsonl.gz", "sub/deep/d.txt"],
    "sub/deep/[!c]*": ["sub/deep/d.txt"],
    "sub": ["sub/b.jsonl.gz", "sub/deep/c.jsonl.gz", "sub/deep/d.txt"],
    "a.jsonl": ["a.jsonl"],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_on_disks(tmp_path: Path, pattern: str) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x" * len(name))
    found = find_inputs([f"{tmp_path}/{pattern}"])
    if pattern == "*":  # a folder that matches stands for what is in it, too
        assert [file.name for file in found] == [f"{tmp_path}/{name}" for name in PATTERNS["**/*"]]
        return
    assert [file.name for file in found] == [f"{tmp_path}/{name}" for name in PATTERNS[pattern]]
    assert all(file.size == len(file.name) - len(str(tmp_path)) - 1 for file in found)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_in_object_stores(s3_bucket: str, pattern: str) -> None:
    store = open_store(s3_bucket)
    for name in FILES[:4]:
        store.write_bytes(name, b"x" * len(name))
    found = find_inputs([f"{s3_bucket}/{pattern}"])
    wanted = PATTERNS["**/*" if pattern == "*" else pattern]
    assert [file.name for file in found] == [f"{s3_bucket}/{name}" for name in wanted]


@pytest.mark.parametrize("pattern", ["**/*.jsonl", "**", "*"])
def test_links_to_a_folder_above_are_not_followed(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "d/sub").mkdir(parents=True)
    (tmp_path / "d/sub/a.jsonl").touch()
    (tmp_path / "d/latest").symlink_to(".")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/b.jsonl").touch()
    (tmp_path / "d/sub/other").symlink_to("../../other")
    found = [file.path for file in find_documents([f"{tmp_path}/d/{pattern}"]).files]
    assert found == ["sub/a.jsonl", "sub/other/b.jsonl"]


def test_a_dangling_link_does_not_hide_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "b.jsonl").symlink_to("nowhere")
    with pytest.raises(NotFound, match="the target of this link does not exist"):
        find_documents([str(tmp_path)])


def test_relative_paths_stay_relative_and_files_come_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "x/a").touch()
    assert [(file.name, file.path) for file in find_inputs(["x/*", "./x/a", "x"])] == [("x/a", "a")]
    (tmp_path / "link").symlink_to("x")
    (tmp_path / "x/b").symlink_to("a")  # another name in the same folder is another file
    spelled = ["x", f"{tmp_path}/x", f"file://{tmp_path}/x", "link", "link/../x/*"]
    assert [file.name for file in find_inputs(spelled)] == ["x/a", "x/b"]
    with pytest.raises(NotFound, match="y/"):
        find_inputs(["x/*", "y/*"])


def test_names_with_brackets_are_names_where_they_are_there(tmp_path: Path) -> None:
    (tmp_path / "x[1]").mkdir()
    (tmp_path / "x[1]/p[0].gz").touch()
    for pattern in ("x[1]", "x[1]/p[0].gz"):
        assert [file.path for file in find_inputs([f"{tmp_path}/{pattern}"])] == ["p[0].gz"]


def test_the_first_folder_called_documents_is_replaced() -> None:
    assert attribute_root("d/documents/x/documents/y.gz", "n") == ("d/attributes/n", "x/documents/y.gz")
    assert attribute_root("documents/y.gz", "n") == ("attributes/n", "y.gz")
    with pytest.raises(ConfigError, match="'documents'"):
        attribute_root("d/documents", "n")


def test_the_folder_that_files_share(tmp_path: Path) -> None:
    for name in ("a/b/x", "a/b/c/y", "a/bc/z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert common_folder(find_inputs([f"{tmp_path}/a/b"])) == f"{tmp_path}/a/b"
    assert common_folder(find_inputs([f"{tmp_path}/a"])) == f"{tmp_path}/a"
