"""Reading ahead: ranges are merged, fetched in order of need, within a budget, and freed when they are used up."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.range_server import RangeServer, range_server

from feedmill.errors import ConfigError, DataError
from feedmill.storage.fetching.ranges import LARGEST, requests_for
from feedmill.storage.fetching.read_ahead import ReadAhead, Starving, budget_from_environment
from feedmill.storage.fetching.segments import HeldSegments, Segment
from feedmill.storage.remote.object_store import RemoteStore

KB = 1 << 10


@pytest.fixture
def server():
    with range_server() as running:
        running.objects["a"] = bytes(np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8))
        running.objects["b"] = running.objects["a"][::-1]
        yield running


def store_of(server: RangeServer) -> RemoteStore:
    return RemoteStore("s3://bkt", **server.options)


def held(store: RemoteStore, key: str, begin: int, end: int) -> bool:
    """Whether one segment has a range."""
    return store.held.find(key, [begin], [end - begin]) != [None]


def wanted(
    reader: ReadAhead, store: RemoteStore, rows: list[tuple[str, int, int, int]], hungry: Starving | None = None
) -> None:
    """Ask for (path, begin, end, step)."""
    paths = sorted({row[0] for row in rows})
    columns = [[paths.index(row[0]) for row in rows], *([row[k] for row in rows] for k in (1, 2, 3))]
    file, begins, ends, steps = (np.array(column, np.int64) for column in columns)
    reader.want(store, paths, file, begins, ends, steps, hungry or Starving())


ranges = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 40 << 20), st.integers(1, 3 << 20)), min_size=1, max_size=60
)


@given(ranges, st.integers(0, 1 << 20))
def test_each_range_lies_in_the_request_that_it_belongs_to(rows, gap):
    rows.sort()
    low = np.array([(file << 44) + begin for file, begin, _ in rows], np.int64)
    high = low + np.array([size for *_, size in rows], np.int64)
    requests = requests_for(low, high, gap)
    begins, ends = requests.begins, requests.ends
    owner = np.searchsorted(requests.first, np.arange(len(low)), side="right") - 1
    assert (begins[owner] <= low).all() and (high <= ends[owner]).all()
    assert (begins >> 44 == (ends - 1) >> 44).all() and (ends - begins).max() <= LARGEST + (3 << 20)


_RANGE = st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 20))
_HELD = st.lists(_RANGE, max_size=12, unique_by=lambda row: row[:2])


@given(_HELD, st.lists(st.lists(_RANGE, max_size=12), min_size=1, max_size=3), st.data())
def test_ranges_are_located_in_one_of_several_overlapping_segments(held, reads, data):
    segments = HeldSegments()
    there = [Segment(None, None, f"f{file}", begin, begin + size, 0) for file, begin, size in held]
    for segment in there:
        segments.add(segment)
    paths = [f"f{number}" for number in range(4)]
    for read in reads:
        if there and data.draw(st.booleans()):
            segments.remove(there.pop(data.draw(st.integers(0, len(there) - 1))))
        columns = np.asarray(read, np.int64).reshape(-1, 3).T
        found = segments.locate(paths, lambda path: path, *columns)
        expected = [_farthest(there, paths[file], begin) for file, begin, _ in read]
        whole = [one is not None and begin + n <= one for one, (_, begin, n) in zip(expected, read, strict=True)]
        if found is None:
            assert not (there and read) or not all(whole)
            continue
        located, rows = found.segments()
        assert all(whole) and len(rows) == len(read)
        assert len(set(map(id, located))) == len(located)
        for row, (file, begin, size) in zip(rows.tolist(), read, strict=True):
            assert located[row] in there and located[row].key == paths[file]
            assert located[row].begin <= begin and begin + size <= located[row].end


def _farthest(segments, key, offset):
    """Return the last end of the segments of an object that begin at or before an offset."""
    return max((one.end for one in segments if one.key == key and one.begin <= offset), default=None)


def test_what_was_asked_for_ahead_is_not_requested_again_when_it_is_read(server):
    store, reader = store_of(server), ReadAhead(1 << 20)
    wanted(reader, store, [("a", 0, 10 * KB, 0), ("b", 500_000, 510_000, 1), ("a", 10 * KB, 30 * KB, 0)])
    assert store.read_ranges("a", [0, 12 * KB], [10 * KB, 5]) == [
        server.objects["a"][: 10 * KB],
        server.objects["a"][12 * KB : 12 * KB + 5],
    ]
    assert store.read("b", 500_001, 9) == server.objects["b"][500_001:500_010]
    assert sorted(server.asked) == [(0, 30 * KB), (500_000, 510_000)]
    reader.close()


def test_ranges_behind_a_segment_that_lies_in_another_one_are_not_requested_again(server):
    store, reader = store_of(server), ReadAhead(1 << 20)
    wanted(reader, store, [("a", 40 * KB, 50 * KB, 0)])  # a first batch, and its window
    wanted(reader, store, [("a", at * KB, (at + 10) * KB, 1) for at in (0, 30, 60, 90)])
    wanted(reader, store, [("a", at * KB, (at + 10) * KB, 2) for at in (0, 60, 90)])
    assert reader.requests == 2
    reader.done(1)
    assert held(store, "a", 60 * KB, 70 * KB)  # for step 2
    reader.done(2)
    assert not held(store, "a", 60 * KB, 70 * KB)
    reader.close()


def test_a_buffer_is_filled_from_what_is_there_and_from_new_requests(server):
    store, reader = store_of(server), ReadAhead(1 << 20)
    wanted(reader, store, [("a", 100, 200, 0)])
    buffer = bytearray(50 + 20 + 7)
    store.fill([("a", [120, 900_000], [50, 20]), ("b", [3], [7])], memoryview(buffer))
    a, b = server.objects["a"], server.objects["b"]
    assert bytes(buffer) == a[120:170] + a[900_000:900_020] + b[3:10]
    reader.close()


def test_bytes_are_freed_with_the_last_step_that_needs_them(server):
    store, reader = store_of(server), ReadAhead(1 << 20)
    wanted(reader, store, [("a", 0, 100, 0), ("a", 50, 100, 2), ("b", 0, 100, 1)])
    wanted(reader, store, [("b", 10, 20, 3)])  # is there already: kept for longer
    store.read_many([("a", [0], [100]), ("b", [0], [100])])
    assert len(server.asked) == 2
    kept = lambda name: held(store, name, 50, 60) or held(store, name, 10, 20)  # noqa: E731
    for step, expected in enumerate([(True, True), (True, True), (False, True), (False, False)]):
        reader.done(step)
        assert (kept("a"), kept("b")) == expected
    assert store.read("a", 0, 100) == server.objects["a"][:100] and len(server.asked) == 3


def test_requests_are_sent_in_the_order_of_need_and_some_at_once(server, monkeypatch):
    server.expect(11)
    store, reader, sent = store_of(server), ReadAhead(64 << 20), []
    counted = reader.sent
    monkeypatch.setattr(reader, "sent", lambda segment, future: (sent.append(segment.begin), counted(segment, future)))
    rows = [("ab"[step % 2], step // 2 * 40_000, step // 2 * 40_000 + 10, step) for step in range(49, -1, -1)]
    wanted(reader, store, rows)
    assert store.read("b", 24 * 40_000, 10) == server.objects["b"][960_000:960_010]
    assert 10 < server.peak <= 66
    first = set(sent[:10]) - {960_000}  # which is waited for
    assert first <= {step * 40_000 for step in range(12)}  # at the server, a busy machine has another order
    reader.close()


def test_a_request_that_failed_is_made_again_by_the_reader_who_reports_it(server):
    store, reader = store_of(server), ReadAhead(1 << 20)
    server.fault = lambda number, begin, end: "403" if number == 0 else None
    wanted(reader, store, [("a", 0, 100, 0)])
    assert store.read("a", 0, 100) == server.objects["a"][:100]
    wanted(reader, store, [("a", (1 << 20) - 10, (1 << 20) + 10, 1)])
    with pytest.raises(DataError) as caught:
        store.read("a", (1 << 20) - 10, 20)
    assert caught.value.kind == "truncated" and caught.value.file == "s3://bkt/a"
    reader.close()


def test_a_request_waits_for_room_until_steps_are_done_or_the_reader_is_hungry_or_closed(server):
    store, reader, hungry = store_of(server), ReadAhead(1000), Starving()
    wanted(reader, store, [("a", 0, 400, 0)])
    wanted(reader, store, [("a", 500, 900, 0)])

    def ask(begin: int, step: int) -> threading.Thread:
        thread = threading.Thread(target=wanted, args=(reader, store, [("b", begin, begin + 500, step)], hungry))
        thread.start()
        thread.join(0.05)
        assert thread.is_alive() and not held(store, "b", begin, begin + 500)
        return thread

    first = ask(0, 1)
    reader.done(0)
    first.join(120)
    assert held(store, "b", 0, 500)
    wanted(reader, store, [("a", 0, 400, 1)])
    second = ask(1000, 2)
    hungry.now = True
    reader.wake()
    second.join(120)
    assert held(store, "b", 1000, 1500)
    hungry.now = False
    third = ask(2000, 3)
    reader.close()
    third.join(120)
    assert not any(held(store, "b", begin, begin + 500) for begin in (0, 1000, 2000))


def test_gaps_are_bridged_only_while_the_budget_allows_it(server):
    store = store_of(server)
    rows = [("a", begin, begin + 1000, 0) for begin in range(0, 200_000, 20_000)]
    wanted(ReadAhead(1 << 20), store, rows)
    assert held(store, "a", 0, 181_000)
    other = store_of(server)
    wanted(ReadAhead(20_000), other, rows)
    assert held(other, "a", 0, 1000) and not held(other, "a", 0, 1001)


def test_nothing_is_asked_for_after_closing(server):
    store, reader = store_of(server), ReadAhead(1 << 20)
    reader.close()
    wanted(reader, store, [("a", 0, 100, 0), ("a", 5, 5, 0)])
    assert not held(store, "a", 0, 100) and not server.asked


@pytest.mark.parametrize(("text", "size"), [("", 256 << 20), ("0", 0), ("3k", 3000), ("2MiB", 2 << 20), ("1G", 10**9)])
def test_the_budget_is_a_size(monkeypatch, text, size):
    monkeypatch.setenv("FEEDMILL_READ_AHEAD", text)
    assert budget_from_environment() == size


@pytest.mark.parametrize("text", ["x", "-1", "M"])
def test_another_budget_is_an_error(monkeypatch, text):
    monkeypatch.setenv("FEEDMILL_READ_AHEAD", text)
    with pytest.raises(ConfigError, match="FEEDMILL_READ_AHEAD"):
        budget_from_environment()
