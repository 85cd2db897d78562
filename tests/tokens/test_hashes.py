"""Token files are known by their hashes: a changed byte in any of them is a finding of `check`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.documents.find import find_documents
from feedmill.formats.tokens.manifest import read_manifest, write_manifest
from feedmill.indexing.check import check
from feedmill.storage import LocalStore
from feedmill.tokens.dolma_output import GroupedOptions, tokenize_grouped
from feedmill.tokens.verbs.tokenize import tokenize
from helpers.tokenizer_data import EOS, loaded, tokenizer_file, write_lines

BOUNDS = ".pbin.feedmill.bounds"


def documents(folder: Path) -> str:
    texts = ({"id": str(i), "text": f"Document {i}, some words."} for i in range(50))
    return str(write_lines(folder.parent / "source.jsonl", texts))


def tokenized(folder: Path, to: str, **options: Any) -> None:
    tokenize([documents(folder)], folder / "x", formats=(to,), tokenizer=loaded(), workers=1, eos=EOS, **options)


def dolma(folder: Path) -> None:
    options = GroupedOptions(eos=loaded().require(EOS), unit_bytes=200)
    tokenize_grouped(find_documents([documents(folder)]).files, str(folder), tokenizer_file("tok1k"), options)


def merged(folder: Path) -> None:
    tokenized(folder.parent / "first", "ds")
    fm.tokens.merge([str(folder.parent / "first/x.ds")] * 2, str(folder / "y.ds"), progress=False)


def converted(folder: Path) -> None:
    tokenized(folder.parent / "first", "ds")
    fm.convert(folder.parent / "first/x.ds", folder, "megatron", progress=False, workers=1)


WRITERS: dict[str, Callable[[Path], None]] = {
    **{to: lambda folder, to=to: tokenized(folder, to) for to in ("pbin", "ds", "megatron")},  # type: ignore[misc]
    "vla-text": lambda folder: tokenized(folder, "vla-text", seq_len=16),
    "dolma": dolma,
    "merge": merged,
    "convert": converted,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_changed_byte_in_any_file_is_found(tmp_path: Path, writer: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    WRITERS[writer](folder)
    root = folder / "x" if writer == "vla-text" else folder
    what = str(next(folder.glob("*.idx"), root))
    report = check(what, progress=False)
    assert not report.findings and not report.notes
    files = [path for path in sorted(root.iterdir()) if path.is_file() and ".feedmill." not in path.name]
    assert files
    for path in files:
        data = path.read_bytes()
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        findings = check(what, progress=False).findings
        assert "hash-mismatch" in {error.kind for error in findings if error.file == str(path)}, (path.name, findings)
        path.write_bytes(data)


def test_a_manifest_without_hashes_is_named(tmp_path: Path) -> None:
    """Releases before 0.2 wrote sizes only."""
    tokenized(tmp_path, "pbin")
    store = LocalStore(tmp_path)
    manifest = read_manifest(store, "x.pbin")
    assert (
        manifest is not None and set(manifest.hashes) == {"x.pbin"} and set(manifest.sizes) == {"x.pbin", f"x{BOUNDS}"}
    )
    write_manifest(store, "x.pbin", type(manifest)("pbin", 50, manifest.tokens, sizes=manifest.sizes))
    report = check(str(tmp_path / "x.pbin"), progress=False)
    assert not report.findings and "sizes were compared" in report.notes[0]
