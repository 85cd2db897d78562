"""Frames by the table of an MP4 file: no container is opened, nothing but what frames need is read."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import DataError
from feedmill.formats.avvideo import FrameRequest, Frames
from feedmill.formats.mp4.decoder import Decoder, runs_of
from feedmill.formats.mp4.table import NoTable, Table, read_table
from feedmill.storage import open_store
from feedmill.storage.remote.object_store import RemoteStore
from helpers import media_files as clips
from helpers.durations import examples
from helpers.range_server import range_server

av = pytest.importorskip("av")

KINDS = [name for name, how in clips.KINDS.items() if how.container in ("mp4", "mov")]


def table_of(data: bytes) -> Table:
    return read_table(lambda begin, end: data[begin:end], len(data))


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mp4")
    for kind in KINDS:
        (folder / kind).write_bytes(clips.movie(kind, seconds=2.0, gop=12, audio=True))
    return folder


@pytest.fixture
def no_container(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object) -> None:
        raise AssertionError("a container was opened")

    monkeypatch.setattr(Frames, "at_through_container", opened)


@pytest.mark.usefixtures("no_container")
@pytest.mark.parametrize("kind", KINDS)
def test_frames_alone_and_together_are_those_of_a_full_decode(kind: str, videos: Path) -> None:
    wanted, times = clips.all_frames((videos / kind).read_bytes())
    frames, random = Frames(open_store(str(videos)), 0.02), np.random.default_rng(3)
    batches = [random.integers(len(times), size=8) for _ in range(20)]
    for numbers in (*batches, np.arange(len(times)), np.arange(len(times))[::-1]):
        batch = frames.request([FrameRequest(kind, float(times[number])) for number in numbers])
        for at in random.permutation(len(numbers)):
            assert np.array_equal(batch.take(at), wanted[numbers[at]]), (kind, numbers, at)
    assert np.array_equal(batch.take(3), wanted[numbers[3]]), "taken twice"


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_has_the_times_that_the_container_gives(kind: str, videos: Path) -> None:
    table = table_of((videos / kind).read_bytes())
    with av.open(str(videos / kind)) as container:
        stream = container.streams.video[0]
        shown = sorted(p.pts for p in container.demux(stream) if p.pts is not None and not p.is_discard)
        assert table.time_base == stream.time_base
    assert table._times.tolist() == shown


@pytest.mark.usefixtures("no_container")
def test_a_batch_decodes_each_group_once(videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []
    frames_of = Decoder.frames
    monkeypatch.setattr(
        Decoder, "frames", lambda self, run, data: fed.extend(run.packets) or frames_of(self, run, data)
    )
    frames = Frames(open_store(str(videos)), 0.02)
    table = frames.table("mp4")
    assert table is not None
    times = np.sort(table.pts) * float(table.time_base)
    batch = frames.request([FrameRequest("mp4", time) for time in times])
    for number in reversed(range(len(times))):
        batch.take(number)
    assert sorted(fed) == list(range(len(times)))
    assert sum(len(run.packets) for run in runs_of(table, [1, 2, 14, 25])) < 30


def noise(path: Path, flags: str, options: dict[str, str]) -> bytes:
    """Twenty frames of noise, some kilobytes each."""
    with av.open(str(path), "w", format="mp4", options={"movflags": flags} if flags else {}) as container:
        stream = container.add_stream(
            "libx264", rate=10, options={"g": "5", "preset": "ultrafast", "bf": "0", **options}
        )
        stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p"
        random = np.random.default_rng(1)
        for _ in range(20):
            pixels = random.integers(0, 255, (96, 128, 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        container.mux(stream.encode())
    return path.read_bytes()


FORMS = {
    "first": ("+faststart", {}),
    "last": ("", {}),
    "pieces": ("frag_keyframe+empty_moov+default_base_moof", {}),
    "reordered": ("", {"bf": "2"}),
}


@pytest.mark.usefixtures("no_container")
@pytest.mark.parametrize("form", FORMS)
def test_a_bucket_is_asked_for_what_the_frames_need(form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("feedmill.formats.mp4.table.FIRST_READ", 4096)
    flags, options = FORMS[form]
    data = noise(tmp_path / "v.mp4", flags, options)
    wanted, times = clips.all_frames(data)
    with range_server() as server:
        server.objects["data/v.mp4"] = data
        frames = Frames(RemoteStore("s3://bkt/data", **server.options), 0.02)
        table = frames.table("v.mp4")
        assert table is not None
        assert sum(end - begin for begin, end in server.asked) < len(data) // 4
        server.asked.clear()
        numbers = [3, 11, 1]
        requests = [FrameRequest("v.mp4", float(times[number])) for number in numbers]
        numbered = np.zeros(3, np.int64), np.asarray([request.time for request in requests])
        ranges = list(zip(*(column.tolist() for column in frames.extents(["v.mp4"], *numbered)), strict=True))
        batch = frames.request(requests)
        for at, number in enumerate(numbers):
            assert np.array_equal(batch.take(at), wanted[number])
        asked = sum(end - begin for begin, end in server.asked)
    packets = {
        number for run in runs_of(table, [frames.find(table, r.time) or 0 for r in requests]) for number in run.packets
    }
    needed = sum(int(table.size[number]) for number in packets)
    assert needed <= asked <= 1.15 * needed < len(data) // 2 and len(server.asked) <= 2
    assert {at for at, _, _ in ranges} == {0, 1, 2}
    inside = {number for number in packets if any(b <= table.offset[number] < e for _, b, e in ranges)}
    assert inside == packets, "what is read ahead is what is read"


def test_damaged_packets_are_named_by_the_container(videos: Path, tmp_path: Path) -> None:
    data = bytearray((videos / "mp4").read_bytes())
    table = table_of(bytes(data))
    begin = int(table.offset[0])
    data[begin : begin + int(table.size[0])] = bytes(int(table.size[0]))
    (tmp_path / "v.mp4").write_bytes(data)
    with pytest.raises(DataError, match=r"no frame within|cannot be decoded"):
        Frames(open_store(str(tmp_path)), 0.02).at("v.mp4", 0.0)


@pytest.fixture(scope="module")
def whole() -> Iterator[bytes]:
    yield clips.movie("mp4", seconds=1.0, audio=False)


def test_what_a_table_cannot_say_is_left_to_a_container(whole: bytes) -> None:
    def changed(name: bytes, skip: int, new: bytes) -> bytes:
        at = whole.rindex(name) + 4 + skip
        return whole[:at] + new + whole[at + len(new) :]

    cases = {
        "several descriptions": changed(b"stsd", 4, b"\0\0\0\2"),
        "codec": changed(b"avc1", -4, b"mp4v"),
        "does not fit": changed(b"stbl", -8, b"\x7f"),
        "disagree": changed(b"stts", 8, b"\0\0\1\0"),
        "outside": changed(b"stco", 8, b"\x7f"),
        "fit the file": changed(b"stsz", 4, b"\0\0\1\0\x7f"),
        "no moov": changed(b"moov", -4, b"junk"),
        "angle": changed(b"tkhd", 40, struct.pack(">2i", 50000, 42000)),
    }
    for message, data in cases.items():
        with pytest.raises(NoTable, match=message):
            table_of(data)
    for size in (0, 7, 40, len(whole) // 2):
        with pytest.raises(NoTable):
            table_of(whole[:size])


@given(st.data())
@settings(max_examples=examples(200))
def test_a_damaged_file_has_no_table_or_one_inside_the_file(whole: bytes, data: st.DataObject) -> None:
    moov = whole.index(b"moov")
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(moov - 4, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        table = table_of(bytes(changed))
    except NoTable:
        return
    assert (table.offset >= 0).all() and (table.offset + table.size <= len(whole)).all() and (table.begin >= 0).all()
