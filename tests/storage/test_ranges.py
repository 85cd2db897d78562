"""Which requests are made for ranges of a remote file, and how many at once."""

from __future__ import annotations

import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.errors import FeedmillError
from feedmill.storage.fetching.fetch import Fetcher
from feedmill.storage.fetching.lanes import Lanes
from feedmill.storage.fetching.ranges import LARGEST, LONG, merged
from feedmill.storage.remote.object_store import RemoteStore
from helpers import warm

KIB, MIB = 1 << 10, 1 << 20


def merge(offsets: list[int], lengths: list[int], gap: int = 256 * KIB) -> list[tuple[int, int]]:
    """The requests for ranges of one file."""
    ranges = [(0, offset, length) for offset, length in zip(offsets, lengths, strict=True)]
    return [(begin, end) for _, begin, end in merged(["f"], ranges, gap)[0]]


def test_neighbors_are_fetched_together_but_not_those_of_another_file() -> None:
    ranges = [(0, 0, 10), (0, 100, 10), (0, 3 * MIB, 5), (0, 50, 100), (0, 0, 0), (1, 5, 5)]
    requests, places = merged(["f", "g"], ranges, 256 * KIB)
    assert requests == [(0, 0, 150), (0, 3 * MIB, 3 * MIB + 5), (1, 5, 10)]
    assert places == [(0, 0), (0, 100), (1, 0), (0, 50), (0, 0), (2, 0)]
    assert merged(["f"], [(0, 7, 0)], 0) == ([], [(0, 0)]) and merged(["f"], [(0, 7, 2)], 0) == ([(0, 7, 9)], [(0, 0)])


def test_long_runs_are_fetched_in_parallel() -> None:
    spans = merge([i * MIB for i in range(64)], [MIB] * 64)
    assert [begin for begin, _ in spans] == [0, *(end for _, end in spans[:-1])] and spans[-1][1] == 64 * MIB
    assert len(spans) == 64 * MIB // LONG and all(LONG - MIB <= end - begin <= LARGEST for begin, end in spans)
    assert merge([i * MIB for i in range(9)], [MIB] * 9) == [(0, LARGEST)]
    assert len(merge([i * MIB for i in range(12)], [MIB] * 12)) == 2


def test_scattered_samples_do_not_fetch_what_lies_between_them() -> None:
    """Sixty-four samples of 15 KB out of 61 MB were fetched with most of the 61 MB."""
    offsets = [i * 950 * KIB for i in range(64)]
    assert len(merge(offsets, [15 * KIB] * 64, MIB)) == 64
    near = [i * 45 * KIB for i in range(64)]
    assert len(merge(near, [15 * KIB] * 64, MIB)) == 1  # gaps of 30 KiB cost less than requests
    mixed = [0, 300 * KIB, 500 * KIB, 5 * MIB]
    assert merge(mixed, [200 * KIB, 100 * KIB, 200 * KIB, KIB], MIB) == [(0, 700 * KIB), (5 * MIB, 5 * MIB + KIB)]


RANGES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40 * MIB), st.integers(0, 3 * MIB)), max_size=60)


@given(RANGES, st.integers(0, 2 * MIB))
def test_each_range_lies_in_one_request_and_little_else_is_fetched(ranges: list[Any], gap: int) -> None:
    requests, places = merged(["a", "b", "c"], ranges, gap)
    for (file, offset, length), (number, start) in zip(ranges, places, strict=True):
        if length:
            owner, begin, end = requests[number]
            assert owner == file and begin + start == offset and offset + length <= end
    assert requests == sorted(requests)
    wanted = sum(length for *_, length in ranges)
    assert sum(end - begin for _, begin, end in requests) <= wanted + wanted // 4 + len(ranges) * 32 * KIB


@pytest.mark.parametrize("bad", [(-1, 5), (5, -1), (1 << 62, 1 << 62), (1 << 44, 1)])
def test_ranges_that_no_file_has(bad: tuple[int, int]) -> None:
    with pytest.raises(FeedmillError, match="invalid range"):
        merged(["f"], [(0, 0, 1), (0, *bad)], 0)


class Slow(BaseHTTPRequestHandler):
    """Answers ranges of `data` once a number of requests was there at once, and after a while."""

    protocol_version = "HTTP/1.1"
    data: ClassVar[bytes] = os.urandom(4 * MIB)
    more: ClassVar[Any] = threading.Condition()
    now: ClassVar[int] = 0
    most: ClassVar[int] = 0
    wanted: ClassVar[int] = 0

    def do_GET(self) -> None:
        with Slow.more:
            Slow.now += 1
            Slow.most = max(Slow.most, Slow.now)
            Slow.more.notify_all()
            Slow.more.wait_for(lambda: Slow.most >= Slow.wanted, 120)
        time.sleep(0.1)
        low, high = (int(part) for part in self.headers["Range"].removeprefix("bytes=").split("-"))
        body = self.data[low : high + 1]
        with Slow.more:
            Slow.now -= 1
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {low}-{high}/{len(self.data)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128


def test_many_small_requests_are_in_flight_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slow, "wanted", 21)
    server = Server(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True).start()
    try:
        store = RemoteStore(f"http://127.0.0.1:{server.server_address[1]}")
        offsets = [i * 100 * KIB for i in range(40)]
        found = store.read_ranges("x", offsets, [KIB] * 40)
        assert found == [Slow.data[at : at + KIB] for at in offsets]
        assert Slow.most > 20
    finally:
        server.shutdown()
        server.server_close()


PROGRAM = """
import sys
from feedmill.storage.remote.object_store import RemoteStore
assert len(RemoteStore(sys.argv[1]).read_ranges("x", [i * 102400 for i in range(40)], [1024] * 40)) == 40
"""


def test_a_program_that_ends_right_after_its_answers_ends_quietly() -> None:
    """With asyncio one in thirty was aborted."""
    server = Server(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        for _ in range(3):
            done = warm.run([sys.executable, "-c", PROGRAM, url], capture_output=True, check=False, timeout=180)
            assert (done.returncode, done.stderr) == (0, b"")
    finally:
        server.shutdown()
        server.server_close()


def test_the_gap_grows_with_latency_and_rate() -> None:
    fetcher, lanes = Fetcher(), Lanes()
    at_first = fetcher.gap()
    for _ in range(200):
        fetcher._measure(lanes.small, 16 * KIB, 0.08)
        fetcher._measure(lanes.large, 8 * MIB, 0.08 + 8 * MIB / 2e9)
    assert at_first < fetcher.gap() <= MIB
