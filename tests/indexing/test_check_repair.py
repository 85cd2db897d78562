"""Damage of every kind: found by check, fixed by repair where it can be, and nothing thrown away."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.tokens.manifest import TokenManifest, write_manifest
from feedmill.formats.tokens.megatron import write_megatron
from feedmill.indexing.check import check
from feedmill.indexing.manifests import write_manifest as write_manifest_of
from feedmill.indexing.prepare import prepare
from feedmill.indexing.repair import repair
from feedmill.samples.open import open as open_dataset
from feedmill.storage import LocalStore
from helpers.nanoset_golden import documents
from helpers.tars import make_shards, tar_bytes, write_tar


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = make_shards(tmp_path, [4, 5, 6], parts=("txt", "json"))
    prepare(str(made), split_ratio="1,0,0", progress=False)
    return made


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    made = make_shards(tmp_path / os.fsdecode(b"d\xff?#%41"), [4, 5], parts=("txt", "json"))
    prepare(str(made), split_ratio="1,0,0", progress=False)
    assert not check(str(made), progress=False).findings
    assert len(open_dataset(str(made))) == 9


def kinds(root: Path, **options: bool) -> list[str]:
    return sorted(finding.kind for finding in check(str(root), progress=False, **options).findings)


def shard(root: Path, number: int = 1) -> Path:
    return root / "shards" / f"shard_{number:03d}.tar"


def edit(path: Path, at: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


def execute(root: Path, sql: str) -> None:
    with sqlite3.connect(root / ".nv-meta" / "index.sqlite") as connection:
        connection.execute(sql)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "content changed": (lambda r: edit(shard(r), 520, b"#"), "hash-mismatch"),
    "header changed": (lambda r: edit(shard(r), 1024, b"#"), "bad-header"),
    "cut in a member": (lambda r: shard(r).write_bytes(shard(r).read_bytes()[:2600]), "truncated"),
    "cut in a header": (lambda r: shard(r).write_bytes(shard(r).read_bytes()[:2100]), "truncated"),
    "cut between members": (lambda r: shard(r).write_bytes(shard(r).read_bytes()[:2048]), "stale-index"),
    "emptied": (lambda r: shard(r).write_bytes(b""), "empty-file"),
    "gone": (lambda r: shard(r).unlink(), "missing-shard"),
    "offsets cut": (lambda r: shard(r).with_suffix(".tar.idx").write_bytes(bytes(7)), "bad-index"),
    "offsets gone": (lambda r: shard(r).with_suffix(".tar.idx").unlink(), "bad-index"),
    "offsets wrong": (lambda r: edit(shard(r).with_suffix(".tar.idx"), 8, b"\x01"), "stale-index"),
    "row wrong": (lambda r: execute(r, "UPDATE samples SET byte_offset = 9 WHERE rowid = 6"), "stale-index"),
    "part row gone": (lambda r: execute(r, "DELETE FROM sample_parts WHERE rowid = 3"), "stale-index"),
    "database damaged": (lambda r: edit(r / ".nv-meta" / "index.sqlite", 0, b"garbage"), "bad-index"),
    "info damaged": (lambda r: (r / ".nv-meta" / ".info.json").write_text("{"), "bad-index"),
    "split wrong": (
        lambda r: (r / ".nv-meta" / "split.yaml").write_text("split_parts: {train: [shards/no.tar]}"),
        "unknown-shard",
    ),
    "description wrong": (lambda r: (r / ".nv-meta" / "dataset.yaml").write_text("sample_type: 3"), "bad-config"),
}  # fmt: skip


def test_an_unharmed_data_set_has_no_findings(root: Path) -> None:
    assert kinds(root) == []
    assert kinds(root, read_samples=True) == []
    result = CliRunner().invoke(app, ["check", str(root)])
    assert result.exit_code == 0
    assert "no problems found (15 samples in 3 shards" in result.stdout


@pytest.mark.parametrize("name", DAMAGE)
def test_check_finds(name: str, root: Path) -> None:
    damage, kind = DAMAGE[name]
    damage(root)
    assert kind in kinds(root)
    result = CliRunner().invoke(app, ["check", str(root), "--json"])
    assert result.exit_code == 1
    findings = json.loads(result.stdout)["findings"]
    assert kind in {finding["kind"] for finding in findings}
    assert all(finding.get("what") for finding in findings)


@pytest.mark.parametrize("name", [n for n in DAMAGE if n not in ("split wrong", "description wrong")])
def test_repair_leaves_a_data_set_without_findings(name: str, root: Path) -> None:
    DAMAGE[name][0](root)
    report = repair(str(root), progress=False)
    if name in ("emptied", "header changed"):  # nothing whole is left of this shard
        assert [error.kind for error in report.remaining] == [DAMAGE[name][1]]
        shard(root).unlink()
    assert kinds(root) == []
    assert report.prepared is not None
    assert len(open_dataset(root)) == report.prepared.samples


LOST = [f"s{n:05d}" for n in range(5, 9)]  # the index lists them


@pytest.mark.parametrize(
    ("damage", "kept", "lost"),
    [
        (DAMAGE["cut in a member"][0], 1, LOST),
        (DAMAGE["cut in a header"][0], 1, LOST),
        (DAMAGE["header changed"][0], 0, []),
        (lambda r: edit(shard(r), 3 * 1024, b"#"), 1, LOST),
    ],
)
def test_repair_drops_incomplete_tails_and_keeps_their_bytes(
    damage: Callable[[Path], object], kept: int, lost: list[str], root: Path
) -> None:
    whole = shard(root).read_bytes()
    damage(root)
    damaged = shard(root).read_bytes()
    report = repair(str(root), progress=False)
    found = [sample.key for sample in open_dataset(root)]
    want = [f"s{n:05d}" for n in range(4)] + ["s00004"][:kept] + [f"s{n:05d}" for n in range(9, 15)]
    assert found == want
    if kept:
        (dropped,) = report.dropped
        assert dropped.keys == lost
        assert shard(root).read_bytes() == whole[: 2048 * kept] + bytes(1024)
        assert Path(dropped.saved).read_bytes() == damaged[2048 * kept :]
        written = json.loads((root / ".nv-meta" / "repair" / "report.json").read_text())
        assert written["dropped"][0]["why"].startswith(str(shard(root)))
    else:
        assert [error.kind for error in report.remaining] == ["bad-header"]


def test_every_repair_has_a_report_of_its_own(root: Path) -> None:
    for number in (0, 2):
        path = shard(root, number)
        path.write_bytes(path.read_bytes()[:5000])
        repair(str(root), progress=False)
    reports = [root / ".nv-meta" / "repair" / name for name in ("report.json", "report-2.json")]
    dropped = [json.loads(path.read_text())["dropped"][0]["file"] for path in reports]
    assert [Path(file).name for file in dropped] == ["shard_000.tar", "shard_002.tar"]
    assert repair(str(root), progress=False).dropped == []
    assert sorted(reports) == sorted((root / ".nv-meta" / "repair").glob("report*"))


def test_repair_keeps_the_bytes_of_each_of_two_shards_with_names_alike(tmp_path: Path) -> None:
    tails = []
    for name in ("a/b.tar", "a__b.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        cut = tar_bytes([(f"{name[1]}{i}.txt".replace("/", "x"), name.encode() * 50) for i in range(4)])[:3700]
        (tmp_path / name).write_bytes(cut)
        tails.append(cut[3072:])
    report = repair(str(tmp_path), progress=False)
    assert [Path(item.saved).read_bytes() for item in report.dropped] == tails


def test_a_shard_of_val_that_cannot_be_repaired_is_told(root: Path) -> None:
    prepare(str(root), split_parts=["train:.*[01].tar", "val:.*2.tar"], progress=False)
    shard(root, 2).write_bytes(bytes(100))
    report = repair(str(root), progress=False)
    assert report.prepared is not None
    assert "the split 'val' loses 1 of its 1 shards" in "".join(report.prepared.warnings)


def test_repair_keeps_a_last_sample_only_if_it_is_as_complete_as_the_others(tmp_path: Path) -> None:
    root = tmp_path / "ds"
    files = [(f"k{n}.{part}", b"x" * 100) for n in range(4) for part in ("jpg", "txt")]
    for name, end in (("a", 7 * 1024), ("b", 6 * 1024)):
        raw = tar_bytes([(f"{name}{key}", data) for key, data in files])
        (root / f"{name}.tar").parent.mkdir(exist_ok=True)
        (root / f"{name}.tar").write_bytes(raw[:end] + b"rubbish")
    repair(str(root), progress=False)
    assert [s.key for s in open_dataset(root)] == [f"{n}k{i}" for n in "ab" for i in range(3)]


def test_repair_forgets_that_lost_samples_were_excluded(root: Path) -> None:
    """The dataset could not be opened with them."""
    listed = [open_dataset(root, raw=True)[n].key for n in (4, 8, 9)]  # the first and the last of a shard, and another
    split = root / ".nv-meta" / "split.yaml"
    entries = "".join(f"\n- shards/shard_00{n}.tar/{key}" for n, key in zip((1, 1, 2), listed, strict=True))
    split.write_text(split.read_text().replace("exclude: []", f"exclude:{entries}"))
    assert len(open_dataset(root, raw=True)) == 12
    shard(root).write_bytes(shard(root).read_bytes()[:9000])
    repair(str(root), progress=False)
    assert listed[1] not in split.read_text() and listed[0] in split.read_text() and listed[2] in split.read_text()
    assert not kinds(root)
    assert listed[0] not in [sample.key for sample in open_dataset(root, raw=True)]


def test_a_shard_outside_the_index_is_a_note(root: Path) -> None:
    write_tar(root / "shards" / "x.tar", [("s00003.txt", b"")])
    report = check(str(root), progress=False)
    assert not report.findings
    assert any("x.tar: not in the index" in note for note in report.notes)
    assert report.samples == 15


@pytest.mark.parametrize("place", [0.3, 0.5, 0.95])
def test_pages_of_the_database_that_are_damaged(place: float, tmp_path: Path) -> None:
    made = make_shards(tmp_path, [300, 300], parts=("txt", "json"))
    prepare(str(made), split_ratio="1,0,0", progress=False)
    index = made / ".nv-meta" / "index.sqlite"
    whole = index.read_bytes()
    edit(index, int(place * len(whole)) // 4096 * 4096, b"\xa5" * 4096)
    assert kinds(made) == ["bad-index"]
    prepare(str(made), progress=False)  # as the finding says
    assert index.read_bytes() == whole and kinds(made) == []


def test_rows_of_the_database_that_are_no_text(root: Path) -> None:
    execute(root, "UPDATE samples SET sample_key = CAST(x'ff' AS TEXT) WHERE rowid = 7")
    assert kinds(root) == ["bad-index"]
    prepare(str(root), progress=False)
    assert kinds(root) == []


def test_keys_that_occur_twice_are_found(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", [("a.txt", b""), ("b.txt", b""), ("a.json", b"{}")])
    write_tar(tmp_path / "1.tar", [("b.txt", b"")])
    found = [(f.kind, f.record, Path(f.file or "").name) for f in check(str(tmp_path), progress=False).findings]
    assert found == [("split-samples", None, "0.tar"), ("duplicate-key", "b", "1.tar")]


def test_lint_reads_every_sample(root: Path) -> None:
    broken = write_tar(root / "shards" / "shard_001.tar", [("bad.txt", b"ok"), ("bad.json", b"{not json")])
    assert broken.exists()
    prepare(str(root), progress=False)
    result = CliRunner().invoke(app, ["compat", "energon", "lint", str(root)])
    assert result.exit_code == 1
    assert "bad.json" in result.stdout
    assert "shard_001.tar" in result.stdout


def test_unprepared_folders_and_single_tars_are_checked_too(tmp_path: Path) -> None:
    root = make_shards(tmp_path, [2, 2])
    assert kinds(root) == []
    one = shard(root, 0)
    assert kinds(one) == []
    edit(one, 0, b"#")
    assert kinds(root) == ["bad-header"]
    assert kinds(one) == ["bad-header"]
    with pytest.raises(NotFound):
        check(str(tmp_path / "nothing"))


LINES = b'{"a": 1}\n\n{"b": NaN}\nnot json\n{"c": }\n{"d": 4}\n[1]\n{"e": 5'


def test_token_files_are_checked_and_tars_beside_them_are_not(tmp_path: Path) -> None:
    golden = Path(__file__).parent.parent / "golden/modalities"
    for name in ("main_2b.pbin", "nested_2b.pbin"):
        (tmp_path / name).write_bytes((golden / name).read_bytes())
    (tmp_path / "x.tar").write_bytes(b"no tar")
    one, both = check(str(tmp_path / "main_2b.pbin")), tmp_path / "both"
    assert not one.findings and one.samples == len(open_dataset(tmp_path / "main_2b.pbin")) and one.shards == 1
    both.mkdir()
    (tmp_path / "main_2b.pbin").rename(both / "a.pbin")
    (tmp_path / "nested_2b.pbin").rename(both / "b.pbin")
    assert kinds(both, read_samples=True) == [] and check(str(both)).shards == 2
    edit(both / "b.pbin", 0, (1 << 40).to_bytes(8, "little"))
    assert kinds(both) == ["truncated"]


def test_where_documents_begin_in_token_files(tmp_path: Path) -> None:
    (tmp_path / "a.ds").write_bytes(bytes(20))
    (tmp_path / "a.ds.metadata").write_text("tokenizer|2\n10\n10")
    report = check(str(tmp_path / "a.ds"))
    assert not report.findings and "only windows" in report.notes[0]  # as Nanotron reads it
    (tmp_path / "a.ds.index").write_bytes(np.array([6, 4, 10], "<u8").tobytes())
    assert len(kinds(tmp_path / "a.ds")) == 1
    (tmp_path / "a.ds.index").write_bytes(np.array([4, 6, 10], "<u8").tobytes())
    report = check(str(tmp_path / "a.ds"))
    assert not report.findings and report.samples == 3


def test_token_files_have_the_sizes_that_their_manifest_says(tmp_path: Path) -> None:
    store, golden = LocalStore(tmp_path), Path(__file__).parent.parent / "golden/modalities"
    for name in ("a.pbin", "b.pbin", "c.pbin"):
        (tmp_path / name).write_bytes((golden / "main_2b.pbin").read_bytes())
        sizes = {name: (tmp_path / name).stat().st_size, f"{name}.feedmill.bounds": 1}  # bounds may go, and come again
        write_manifest(store, name, TokenManifest("pbin", 1, 1, sizes=sizes if name != "c.pbin" else {}))
    assert kinds(tmp_path) == kinds(tmp_path / "a.pbin") == []
    write_manifest(store, "b.pbin", TokenManifest("pbin", 1, 1, sizes={"b.pbin": 5}))
    assert kinds(tmp_path) == kinds(tmp_path / "b.pbin") == ["wrong-count"] and kinds(tmp_path / "a.pbin") == []
    found = CliRunner().invoke(app, ["check", str(tmp_path / "b.pbin")])
    assert found.exit_code == 1 and "expected 5 bytes by" in found.stdout
    (tmp_path / "a.pbin").unlink()
    assert kinds(tmp_path) == ["missing-shard", "wrong-count"]
    (tmp_path / "b.pbin").rename(tmp_path / "d.pbin")
    (tmp_path / "b.pbin.feedmill.json").rename(tmp_path / "d.pbin.feedmill.json")
    (tmp_path / "c.pbin.feedmill.json").write_text("{")
    notes = check(str(tmp_path / "d.pbin")).notes + check(str(tmp_path / "c.pbin")).notes
    assert "other file names" in notes[0] and "cannot read the manifest" in notes[1]


def test_token_files_of_two_parts_have_one_manifest(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with write_megatron(store, "x", "u2") as out:
        out.add(*documents([2, 3]))
    write_manifest(store, "x.idx", TokenManifest("megatron", 2, 5, sizes={"x.bin": 10, "x.idx": 1}))
    assert kinds(tmp_path / "x.bin") == kinds(tmp_path / "x.idx") == ["wrong-count"]
    assert "x.idx" in str(check(str(tmp_path / "x.bin")).findings[0].file)


@pytest.mark.parametrize("name", ["a.pbin", "a.ds", "a.npy", "."])
def test_token_files_are_not_for_repair(tmp_path: Path, name: str) -> None:
    for one in ("a.pbin", "a.ds", "a.npy") if name != "." else ("a.pbin",):
        (tmp_path / one).write_bytes(bytes(20))
    path = str(tmp_path / name)
    with pytest.raises(
        ConfigError, match=r"token files .* cannot be repaired.*'feedmill check'.*'feedmill tokenize'"
    ) as caught:
        repair(path, progress=False)
    assert (caught.value.kind, caught.value.file) == ("unsupported", path)


def test_repair_without_any_shard_of_the_index(tmp_path: Path) -> None:
    root = make_shards(tmp_path, [2])
    prepare(str(root), progress=False)
    shard(root, 0).rename(shard(root, 7))
    with pytest.raises(NotFound, match="all shards that the index lists are missing"):
        repair(str(root), progress=False)


def test_repair_names_a_shard_that_is_missing(tmp_path: Path) -> None:
    """It was dropped from the index without a word."""
    root = make_shards(tmp_path, [2, 2])
    prepare(str(root), progress=False)
    shard(root, 1).unlink()
    report = repair(str(root), progress=False)
    assert [(error.kind, error.file) for error in report.remaining] == [("missing-shard", str(shard(root, 1)))]
    assert report.prepared is not None and report.prepared.shards == 1


def test_a_shard_to_index_that_does_not_exist_is_named(tmp_path: Path) -> None:
    root = make_shards(tmp_path, [2, 2])
    with pytest.raises(NotFound, match=r"shards/7\.tar: there is no such shard to index.*such as") as caught:
        prepare(str(root), shards=["shards/7.tar"], progress=False)
    assert caught.value.kind == "missing-shard"


@pytest.mark.parametrize("name", ["vla", "vla/manifest.jsonl"])
def test_vla_folders_are_repaired_shard_by_shard(tmp_path: Path, name: str) -> None:
    root = tmp_path / "vla"
    for number in range(2):
        write_tar(root / f"s{number}.tar", [(f"{number}{key}.txt", b"x" * 600) for key in "abc"])
    write_manifest_of(str(root), progress=False)
    (root / "s1.tar").write_bytes((root / "s1.tar").read_bytes()[:4000])
    before = sorted(root.rglob("*"))
    with pytest.raises(ConfigError) as caught:
        repair(str(tmp_path / name), progress=False)
    assert (caught.value.kind, caught.value.file) == ("unsupported", str(tmp_path / name))
    assert sorted(root.rglob("*")) == before
    steps = re.findall(r"'feedmill ([^']+)'", caught.value.fix or "")
    assert [step.split()[:2] for step in steps] == [["check"], ["edit", "repair"], ["compat", "vla"]]
    for step in steps[1:]:  # what it advises works
        result = CliRunner().invoke(app, step.replace("SHARD", "s1").split())
        assert result.exit_code == 0, result.output
    assert kinds(root) == []
    assert len(open_dataset(root)) == 5
    assert not (root / ".nv-meta").exists()


def test_jsonl_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(LINES)
    assert kinds(path) == ["bad-line"]
    report = repair(str(path), progress=False)
    assert len(report.dropped) == 4
    assert path.read_bytes() == b'{"a": 1}\n\n{"b": NaN}\n{"d": 4}\n'
    kept = (tmp_path / "x.jsonl.repair" / "bad-lines.jsonl").read_bytes()
    assert kept == b'not json\n{"c": }\n[1]\n{"e": 5'
    assert kinds(path) == []
    assert [list(s["json"]) for s in open_dataset(path)] == [["a"], ["b"], ["d"]]
    path.write_bytes(path.read_bytes() + b'{"f": 6}\n')
    assert kinds(path) == ["stale-index"]


def test_byte_order_marks_are_named_and_removed_without_their_lines(tmp_path: Path) -> None:
    path, mark = tmp_path / "x.jsonl", b"\xef\xbb\xbf"
    whole = b'{"a": 1}\n{"a": 2}\n{"a": 3}'
    path.write_bytes(whole)
    prepare(str(path), split_ratio="2,1,0", progress=False)
    splits = (tmp_path / "x.jsonl.split.yaml").read_bytes()
    path.write_bytes(mark + whole.replace(b'{"a": 3}', mark + b'{"a": 3}'))  # two marked files, joined
    with pytest.raises(DataError, match=r"byte order mark.*'feedmill edit repair' to remove the mark"):
        prepare(str(path), progress=False)
    report = repair(str(path), progress=False)
    assert [(one.offset, one.bytes, one.why) for one in report.dropped] == [
        (0, 3, "a byte order mark"),
        (21, 3, "a byte order mark"),
    ]
    assert path.read_bytes() == whole and kinds(path) == []
    assert (tmp_path / "x.jsonl.split.yaml").read_bytes() == splits
    path = tmp_path / "y.jsonl"
    path.write_bytes(mark + b'{"a": 1}\n' + mark + b"{]}\nnot json\n")
    assert len(repair(str(path), progress=False).dropped) == 3 and path.read_bytes() == b'{"a": 1}\n'
    kept = (tmp_path / "y.jsonl.repair" / "bad-lines.jsonl").read_bytes()
    assert kept == mark + mark + b"{]}\nnot json\n"


def test_what_an_earlier_repair_took_out_stays(tmp_path: Path) -> None:
    path, kept = tmp_path / "x.jsonl", tmp_path / "x.jsonl.repair"
    for bad in (b"one\n", b"two\n", b"three\n"):
        path.write_bytes(bad + b'{"a": 1}\n')
        assert len(repair(str(path), progress=False).dropped) == 1
    found = {file.name: file.read_bytes() for file in kept.glob("bad-lines*")}
    assert found == {"bad-lines.jsonl": b"one\n", "bad-lines-2.jsonl": b"two\n", "bad-lines-3.jsonl": b"three\n"}


def test_a_file_without_any_good_line_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"[1]\n[2]\n")
    with pytest.raises(DataError, match="nothing would be left"):
        repair(str(path), progress=False)
    assert path.read_bytes() == b"[1]\n[2]\n" and [p.name for p in tmp_path.iterdir()] == ["x.jsonl"]


def test_jsonl_with_lines_that_only_look_like_objects(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n  \n{]}\n" + b'{"n": 1}\n' * 9000 + b"{x}\n")
    assert kinds(path) == ["bad-line", "bad-line"]
    assert len(repair(str(path), progress=False).dropped) == 2
    assert len(open_dataset(path)) == 9000
    assert np.all(np.diff(open_dataset(path)._offsets) > 0)  # type: ignore[attr-defined]


def test_repair_leaves_out_what_was_left_out(tmp_path: Path) -> None:
    root = make_shards(tmp_path, [2, 2, 2])
    prepare(str(root), exclude="001", split_ratio="1,0,0", progress=False)
    last = shard(root, 2)
    last.write_bytes(last.read_bytes()[: 2048 + 700])
    report = repair(str(root), progress=False)
    assert [s.key for s in open_dataset(root)] == ["s00000", "s00001", "s00004"]
    assert len(report.dropped) == 1


def test_two_tars_in_one_file_do_not_pass_in_silence(tmp_path: Path) -> None:
    (tmp_path / "0.tar").write_bytes(tar_bytes([("a.txt", b"1")]) + tar_bytes([("b.txt", b"2")]))
    report = prepare(str(tmp_path), progress=False)
    assert report.samples == 1
    remark = f"{tmp_path / '0.tar'}: data follows the end-of-archive marker (10,240 bytes); its samples are not read"
    assert report.warnings == [remark] == write_manifest_of(str(tmp_path), progress=False).notes
    assert kinds(tmp_path) == ["data-after-end"]


def test_parts_without_content_are_counted(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as out:
        for name, kind in (("0.txt", tarfile.REGTYPE), ("1.txt", tarfile.LNKTYPE), ("1.json", tarfile.REGTYPE),
                           ("2.txt", tarfile.SYMTYPE), ("README", tarfile.LNKTYPE), ("3.txt", tarfile.FIFOTYPE),
                           ("4.txt", tarfile.CHRTYPE), ("5.d", tarfile.DIRTYPE)):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "0.txt" if kind in (tarfile.LNKTYPE, tarfile.SYMTYPE) else ""
            out.addfile(member)
    remark = f"{tmp_path / '0.tar'}: parts that are links, devices or pipes are not read: 4."
    assert [text.partition(" For")[0] for text in open_dataset(tmp_path).remarks] == [remark]
    manifest = write_manifest_of(str(tmp_path), progress=False)
    assert manifest.samples == 2 and manifest.notes == open_dataset(tmp_path).remarks
    for _ in range(2):  # a folder with a manifest, a prepared one
        assert not check(str(tmp_path), progress=False).findings
        assert manifest.notes[0] in check(str(tmp_path), progress=False).notes
        assert prepare(str(tmp_path), progress=False, rescan=True).warnings == manifest.notes


@pytest.mark.parametrize("read_samples", [False, True])
def test_the_keys_of_a_table_are_checked(tmp_path: Path, read_samples: bool) -> None:
    def found(*files: list[str | bytes | None]) -> list[tuple[str, str | None, str]]:
        for number, keys in enumerate(files):
            pq.write_table(pa.table({"__key__": keys, "x": range(len(keys))}), tmp_path / f"{number}.parquet")
        findings = check(str(tmp_path), read_samples=read_samples, progress=False).findings
        return [(error.kind, error.record, Path(error.file or "").name) for error in findings]

    assert found(["a", "b"], ["c"]) == []
    assert found(["a", "b", "a"], ["c", "b"]) == [
        ("duplicate-key", "a", "0.parquet"),
        ("duplicate-key", "b", "1.parquet"),
    ]
    assert found(["a", "b"], ["", "c", ""]) == [("missing-field", None, "1.parquet")]
    assert found(["a", None], ["c"]) == [("missing-field", None, "0.parquet")]
    assert found([b"a", b"\xff"], [b"c"]) == [("bad-encoding", "column '__key__'", "0.parquet")]


def test_the_keys_of_arrays_are_checked(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", __key__=np.asarray(["a", "b", "a"]), x=np.arange(3))
    assert [(error.kind, error.record) for error in check(str(tmp_path), progress=False).findings] == [
        ("duplicate-key", "a")
    ]
