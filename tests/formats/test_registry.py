"""The registry: what it names is there, nothing is imported before it is met, and a path is looked at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.formats.format import Detected, Format, named
from feedmill.formats.registry import PACKAGES, by_name, formats, targets
from feedmill.formats.sniff import sniff
from helpers.dataset_kinds import make


@pytest.mark.parametrize("format", formats(), ids=lambda format: format.name)
def test_what_a_format_names_is_there(format: Format) -> None:
    for reference in (format.open, format.is_file, format.is_folder):
        assert not reference or callable(named(reference))
    for target in format.targets:
        assert not target.beside or all(isinstance(path, str) for path in named(target.beside))
        assert target.takes and target.writes
    assert isinstance(format.repair, str) or all(format.repair)


def test_names_are_unique() -> None:
    assert len(by_name()) == len(formats())
    assert len(targets()) == sum(len(format.targets) for format in formats())


def imported(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*[m for m in sys.modules if m.startswith('feedmill.')])"
    return set(
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    )


def test_listing_formats_imports_none_of_them() -> None:
    found = imported("from feedmill.formats.registry import formats, targets; formats(); targets()")
    packages = {f"feedmill.formats.{package}" for package in PACKAGES}
    assert {name for name in found if name.rpartition(".")[0] in packages} == set()


@pytest.mark.parametrize("kind", ["prepared", "plain"])
def test_opening_tars_imports_no_other_format(tmp_path: Path, kind: str) -> None:
    url = make(tmp_path, kind)
    found = imported(f"import feedmill as fm; fm.open({str(url)!r})[0]")
    others = ("tokens", "pth", "mds", "lerobot", "tables", "img2dataset")
    read = [name for name in found if name.startswith(tuple(f"feedmill.formats.{other}." for other in others))]
    assert not read


def test_a_first_batch_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    """Half of a cold start is imports: this is what came in unnoticed before."""
    url = make(tmp_path, "prepared")
    found = imported(
        f"import feedmill as fm; next(iter(fm.Loader(fm.open({str(url)!r}, raw=True, decode=None), batch_size=2)))\n"
        "heavy = {'yaml', 'sqlite3', 'shutil', 'tempfile', 'multiprocessing', 'importlib.metadata'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    assert len(found) <= 140
    assert not {name for name in found if name.startswith(("feedmill.jobs.journal", "feedmill.jobs.engine"))}


def test_a_path_is_sniffed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = make(tmp_path, "prepared")
    seen = []

    def counted(path: str) -> Detected:
        seen.append(path)
        return sniff(path)

    for module in ("feedmill.formats.sniff", "feedmill.samples.open"):
        monkeypatch.setattr(f"{module}.sniff", counted)
    assert len(fm.open(url)) and seen == [url]


@pytest.mark.parametrize("mark", ["index.json", "meta/info.json", "manifest.jsonl", "00000_stats.txt"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"null", b'{"shards"'])
def test_a_mark_of_another_format_does_not_make_a_folder_of_tars_another_one(
    tmp_path: Path, mark: str, content: bytes
) -> None:
    url = make(tmp_path, "plain")
    path = Path(url) / mark
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    assert sniff(url).kind == "webdataset"
