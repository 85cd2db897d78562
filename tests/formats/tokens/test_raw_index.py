"""The raw index of JSONL: the peer's bytes, `json.loads` as the judge of lines, and an index of another file."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import DataError, NotFound
from feedmill.formats.tokens import raw_index
from feedmill.formats.tokens.raw_index import index_lines, load_raw_index, raw_index_path, write_raw_index
from feedmill.storage import LocalStore
from helpers.durations import examples

GOLDEN = Path(__file__).parents[2] / "golden" / "modalities"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


def accepted(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def plain(data: bytes) -> tuple[list[tuple[int, int]], list[int]]:
    """Good lines, and the numbers of bad ones, by a plain loop."""
    lines = data.split(b"\n")
    if data.endswith(b"\n"):
        lines.pop()
    good, bad, at = [], [], 0
    for number, line in enumerate(lines, 1):
        if accepted(line):
            good.append((at, len(line)))
        else:
            bad.append(number)
        at += len(line) + 1
    return good, bad


def pairs(found: tuple[np.ndarray, np.ndarray]) -> list[tuple[int, int]]:
    return list(zip(found[0].tolist(), found[1].tolist(), strict=True))


@pytest.mark.parametrize("name", [name for name in EXPECTED["idx"] if (GOLDEN / name).exists()])
def test_golden_indices(name: str, tmp_path: Path) -> None:
    data = name.replace(".idx", ".jsonl")
    (tmp_path / data).write_bytes((GOLDEN / data).read_bytes())
    store = LocalStore(tmp_path)
    found = write_raw_index(store, data)
    assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes()
    assert pairs(load_raw_index(store, name, data)) == pairs((found.starts, found.lengths))
    facts = EXPECTED["idx"][name]
    assert (len(found.starts), found.dropped) == (facts["n"], 0)
    assert [found.starts[-1], found.lengths[-1]] == facts["last"]


ODD_LINES = [
    b"",
    b" ",
    b"\r",
    b"{bad",
    b'{"a": 1}',
    b'{"a": 1}\r',
    b"NaN",
    b"[Infinity, -Infinity]",
    b'"\\ud800"',
    b'{"a": "\xed\xa0\x80"}',
    b'"\xff"',
    b'{"a": "\xc3\xa9\xf0\x9f\x98\x80"}',
    b"\xef\xbb\xbf[1]",
    b"\xff\xfe[\x00]\x00",
    b"[\x001\x00]\x00",
    b'"\t"',
    b'"\x00"',
    b"1e999",
    b"-1e999",
    b"1" * 4300,
    b"1" * 4301,
    b'{"a": "' + b"1" * 5000 + b'"}',
    b'{"text": "' + b"word " * 900 + b'", "n": ' + b"9" * 4301 + b"}",
    b'{"text": "' + b"word " * 900 + b'", "n": ' + b"9" * 4300 + b"}",
    b"[" * 400 + b"]" * 400,
    b"[" * 2000 + b"]" * 2000,
    b'{"a":' * 1500 + b"1" + b"}" * 1500,
    b'{"a": 1, "a": 2}',
    b"01",
    b"-0",
    b"1.",
    b'{"a": 1,}',
    b"[1, 2",
    b"1 2",
    b"nul",
    b'"\x7f"',
    b"\x0b1",
    b"{1: 2}",
    b'"\\x"',
    b"1],[2",
    b"1]]],[[[2",
    b"],[",
    b"1" + b"]" * 12 + b"," + b"[" * 12 + b"2",
    b"1" + b"]" * 12,
    b"[" * 12,
    b"1,2",
    b",",
    b"[" * 5000 + b'"' + b"x" * 9000 + b'"' + b"]" * 5000,
]


@pytest.mark.parametrize("line", ODD_LINES, ids=range(len(ODD_LINES)))
def test_odd_lines_are_judged_as_json_loads_does(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"[1]\n" + line + b"\n[2]\n")
    store = LocalStore(tmp_path)
    found = index_lines(store, "x.jsonl", drop=True)
    good, bad = plain((tmp_path / "x.jsonl").read_bytes())
    assert pairs((found.starts, found.lengths)) == good
    assert ([b.line for b in found.bad], found.dropped) == (bad, len(bad))
    if bad:
        with pytest.raises(DataError, match="'line 2' at byte 4: this line is not valid JSON") as caught:
            index_lines(store, "x.jsonl")
        assert caught.value.file == str(tmp_path / "x.jsonl")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
LINES = st.one_of(
    JSON.map(lambda value: json.dumps(value).encode()),
    JSON.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")),
    st.binary(max_size=8).map(lambda b: b.replace(b"\n", b"")),
    st.sampled_from([line for line in ODD_LINES if len(line) < 100]),
)


@settings(max_examples=examples(300), deadline=None)
@given(
    lines=st.lists(LINES, max_size=12),
    final=st.booleans(),
    step=st.integers(1, 60),
    block=st.integers(1, 40),
    edit=st.tuples(st.integers(0, 300), st.integers(0, 255)) | st.none(),
)
def test_any_cut_into_ranges_and_blocks_gives_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    final: bool,
    step: int,
    block: int,
    edit: tuple[int, int] | None,
) -> None:
    data = bytearray(b"\n".join(lines) + (b"\n" if final else b""))
    if edit and data:
        data[edit[0] % len(data)] = edit[1]
    if not data:
        return
    folder = tmp_path_factory.mktemp("x")
    (folder / "x.jsonl").write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_index, "RANGE", step)
        patch.setattr(raw_index, "BLOCK", block)
        found = write_raw_index(LocalStore(folder), "x.jsonl", drop=True, workers=1)
    good, bad = plain(bytes(data))
    assert pairs((found.starts, found.lengths)) == good
    assert [b.line for b in found.bad] == bad
    assert (folder / "x.idx").read_bytes() == pickle.dumps(good, 4)
    assert pairs(load_raw_index(LocalStore(folder), "x.idx", "x.jsonl")) == good


def test_several_threads_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps({"n": n, "text": "x" * (n % 50)}) for n in range(2000)]
    lines[700] = "{bad"
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(raw_index, "RANGE", 4000)
    one = write_raw_index(LocalStore(tmp_path), "x.jsonl", "one.idx", drop=True, workers=1)
    two = write_raw_index(LocalStore(tmp_path), "x.jsonl", "two.idx", drop=True, workers=2)
    assert (tmp_path / "one.idx").read_bytes() == (tmp_path / "two.idx").read_bytes()
    assert one.bad == two.bad and one.bad[0].line == 701


def test_many_bad_lines_are_counted_and_some_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"x\n" * 500)
    found = index_lines(LocalStore(tmp_path), "x.jsonl", drop=True)
    assert (found.dropped, len(found.bad), found.bad[99].line) == (500, 100, 100)


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"")
    store = LocalStore(tmp_path)
    with pytest.raises(DataError, match="the file is empty"):
        write_raw_index(store, "x.jsonl")
    assert not (tmp_path / "x.idx").exists()
    assert write_raw_index(store, "x.jsonl", drop=True).dropped == 1
    assert (tmp_path / "x.idx").read_bytes() == pickle.dumps([], 4)
    assert pairs(load_raw_index(store, "x.idx", "x.jsonl")) == []
    with pytest.raises(NotFound):
        write_raw_index(store, "nope.jsonl")


@pytest.mark.parametrize("change", ["shorter", "longer lines", "other"])
def test_an_index_of_another_file_is_noticed(change: str, tmp_path: Path) -> None:
    lines = [json.dumps({"n": n}).encode() for n in range(50)]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    store = LocalStore(tmp_path)
    write_raw_index(store, "x.jsonl")
    if change == "shorter":
        lines = lines[:40]
    elif change == "longer lines":
        lines = [b" " + line for line in lines]
    else:
        lines[20], lines[21] = b'{"nn": 20}', b"{}"
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(DataError, match=r"x\.idx.*this is not the index of .*x\.jsonl"):
        load_raw_index(store, "x.idx", "x.jsonl")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"MMIDIDX\x00\x00" + bytes(40), "Megatron"),
        (np.arange(3, dtype="<u8").tobytes(), "opcode"),
        (pickle.dumps([(0, 3), (2, 1)], 4), "entry 1.*not the index"),
        (pickle.dumps([(2**63 - 1, 2**63 - 1)], 4), "entry 0.*not the index"),
        (b"", "truncated"),
    ],
)
def test_files_that_are_no_such_index(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"[1]\n")
    (tmp_path / "x.idx").write_bytes(data)
    with pytest.raises(DataError, match=message):
        load_raw_index(LocalStore(tmp_path), "x.idx", "x.jsonl")


def test_where_the_index_lies() -> None:
    assert raw_index_path("a/b.c.jsonl") == "a/b.c.idx"
