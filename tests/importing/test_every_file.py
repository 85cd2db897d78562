"""Whatever lies in a folder: every file is imported, or is named with its reason."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.demo.sample_data import card
from feedmill.errors import ConfigError, DataError
from helpers.durations import examples

_STEMS = st.sampled_from(
    ["a", "b", "a.b", "c_d", "__x__", "README", "ünï", ".h", "metadata", " space ", "-dash", "%2E"]
)
_SUFFIXES = st.sampled_from(
    [
        "jpg",
        "JPEG",
        "png",
        "txt",
        "caption",
        "md",
        "html",
        "csv",
        "jsonl",
        "json",
        "cls",
        "wav",
        "pdf",
        "gz",
        "txt.gz",
        "",
    ]
)
_FOLDERS = st.lists(st.sampled_from(["train", "val", "cat", "dog", "__f__", "d.ot"]), max_size=3).map("/".join)
_PHOTO = card(1)
_CONTENTS = st.sampled_from(
    [
        _PHOTO,
        _PHOTO,
        _PHOTO,
        _PHOTO[:150],
        b"",
        b"some text",
        b"caf\xe9",
        b"1",
        b'{"text": "row"}\n{"text": 3}\n',
        b"text,n\nrow,1\n",
    ]
)
_FILES = st.dictionaries(st.tuples(_FOLDERS, _STEMS, _SUFFIXES), _CONTENTS, min_size=1, max_size=24)


def read(out: Path, report: fm.reports.ImportReport) -> set[str]:
    """The files that the output has: their content for media, their names for documents."""
    if report.type != "documents":
        return set()
    rows = [json.loads(line) for path in (out / "documents").iterdir() for line in path.read_bytes().splitlines()]
    return {row["metadata"]["file"] for row in rows}


def key(name: str) -> str:
    above, slash, last = name.rpartition("/")
    return above + slash + last.rpartition(".")[0].replace(".", "_")


@settings(max_examples=examples(40), deadline=None)
@given(_FILES, st.sampled_from(["auto", "documents", "media", "captioning", "classification", "parts"]))
def test_every_file_is_imported_or_named(files: dict[tuple[str, str, str], bytes], kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, out = Path(folder) / "raw", Path(folder) / "out"
        names = {}
        for (above, stem, suffix), data in files.items():
            name = f"{above}/{stem}.{suffix}".strip("/") if suffix else f"{above}/{stem}".strip("/")
            if (root / name).is_dir() or any((root / parent).is_file() for parent in Path(name).parents):
                continue
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
            names[name] = data
        try:
            report = fm.import_data(root, out, type=kind, workers=1, progress=False)
        except (ConfigError, DataError) as error:  # nothing was imported, or the user has to choose
            assert error.fix and not (out / "documents").exists() and not (out / ".nv-meta").exists()
            return
        left = {name for named in report.left_out.names.values() for name in named}
        rows = {name.rpartition(":")[0] for name in left} | {name.partition(":")[0] for name in left}
        if report.type == "documents":
            for name in names:
                assert (name in read(out, report)) or name in left or name in rows, (name, left)
            return
        stored = {sample.key for sample in fm.open(out, raw=True)}
        assert report.samples == len(stored)
        known = left | rows
        media = [name for name in names if name.lower().endswith((".jpg", ".jpeg", ".png", ".wav"))]
        for name in set(names) - known:
            if report.type == "parts":
                folder_, slash, last = name.rpartition("/")
                assert folder_ + slash + last.partition(".")[0] in stored, name
            elif name in media:
                plain = key(name)
                assert plain in stored or f"{plain}_{name.rpartition('.')[2].lower()}" in stored, name
            elif not Path(name).name.lower().startswith("metadata."):
                stem = name.rpartition(".")[0]
                assert any(stem in (one, one.rpartition(".")[0]) for one in media if one not in known), name
        if report.type != "parts":
            assert len(stored) <= len(media)
