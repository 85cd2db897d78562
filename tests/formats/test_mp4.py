"""Frames by the table of an MP4 file: no container is opened, nothing but what frames need is read."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import DataError, FeedmillError
from feedmill.formats.arrays import pack_arrays
from feedmill.formats.avvideo import FrameRequest, Frames
from feedmill.formats.mp4 import sidecar
from feedmill.formats.mp4.decoder import Decoder, Run, runs_of
from feedmill.formats.mp4.table import NoTable, Setup, Table, read_table
from feedmill.samples.avdecoder import AVDecoder
from feedmill.storage import open_store
from feedmill.storage.cache.chunks import disk_cache
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
    assert table.times.tolist() == shown


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
        server.forget()
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
        "truncated, or its table is wrong": changed(b"stco", 8, b"\x7f"),
        "fit the file": changed(b"stsz", 4, b"\0\0\1\0\x7f"),
        "no moov": changed(b"moov", -4, b"junk"),
        "negative time": changed(b"stts", 12, b"\xff"),
        "another track": changed(b"vide", -4, b"auxv"),
        "angle": changed(b"tkhd", 40, struct.pack(">2i", 50000, 42000)),
    }
    for message, data in cases.items():
        with pytest.raises(NoTable, match=message):
            table_of(data)
    for size in (0, 7, 40, len(whole) // 2):
        with pytest.raises(NoTable):
            table_of(whole[:size])


def test_a_codec_that_nobody_knows_is_named(whole: bytes, tmp_path: Path) -> None:
    (tmp_path / "v.mp4").write_bytes(whole.replace(b"avc1", b"xqzt"))
    with pytest.raises(DataError, match="does not know its codec") as raised:
        Frames(open_store(str(tmp_path)), 0.02).at("v.mp4", 0.0)
    assert raised.value.file and raised.value.kind == "unsupported"


def box(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I4s", len(body) + 8, kind) + body


def replaced(data: bytes, kind: bytes, new: bytes) -> bytes:
    """Replace the last box of a kind, and correct the lengths of those around it in a ``moov`` at the end."""
    at = data.rindex(kind) - 4
    grown = len(new) - int.from_bytes(data[at : at + 4], "big")
    out = bytearray(data[:at] + new + data[at + len(new) - grown :])
    for around in (b"stbl", b"minf", b"mdia", b"edts", b"trak", b"moov"):
        place = data.rfind(around, 0, at) - 4
        length = int.from_bytes(data[max(place, 0) : place + 4], "big")
        if place >= 0 and place + length > at:
            out[place : place + 4] = struct.pack(">I", length + grown)
    return bytes(out)


def edits(*entries: tuple[int, int]) -> bytes:
    rows = b"".join(struct.pack(">IiI", length, begin, 1 << 16) for length, begin in entries)
    return box(b"elst", struct.pack(">II", 0, len(entries)) + rows)


def times_by_container(path: Path) -> list[int]:
    with av.open(str(path)) as container:
        return sorted(p.pts for p in container.demux(video=0) if p.pts is not None and not p.is_discard)


@pytest.mark.parametrize("entries", [[(333, -1), (900, 1024)], [(7, -1), (1501, 5000)], [(1333, 3000)], [(777, 9216)]])
def test_edits_round_as_the_container_does(entries: list[tuple[int, int]], tmp_path: Path) -> None:
    path = tmp_path / "v.mp4"
    path.write_bytes(replaced(noise(path, "", {"bf": "2"}), b"elst", edits(*entries)))
    assert table_of(path.read_bytes()).times.tolist() == times_by_container(path)


@pytest.mark.parametrize("entries", [[(0, 1024)], [(0, 0)], [(1000, 2048)], [(1500, 4096)], [(333, -1)]])
def test_edits_of_fragments_move_frames_and_hide_none(entries: list[tuple[int, int]], tmp_path: Path) -> None:
    path = tmp_path / "v.mp4"
    data = noise(path, "frag_keyframe+delay_moov+default_base_moof", {"bf": "2"})
    at, new = data.index(b"elst") - 4, edits(*entries)
    assert data[at : at + 4] == new[:4]
    path.write_bytes(data[:at] + new + data[at + len(new) :])
    assert table_of(path.read_bytes()).times.tolist() == times_by_container(path)


@pytest.mark.parametrize("entries", [[(0, 1024)], [(333, -1)]])
def test_edits_by_which_ffmpeg_shows_no_frames_are_left_to_it(entries: list[tuple[int, int]], tmp_path: Path) -> None:
    path = tmp_path / "v.mp4"
    path.write_bytes(replaced(noise(path, "", {"bf": "2"}), b"elst", edits(*entries)))
    assert times_by_container(path) == []
    with pytest.raises(NoTable, match="without a length"):
        table_of(path.read_bytes())


def test_frames_in_the_moov_box_before_fragments_are_not_lost(tmp_path: Path) -> None:
    data = noise(tmp_path / "v.mp4", "frag_keyframe", {})
    with pytest.raises(NoTable, match="in the moov box and in fragments"):
        table_of(data)
    wanted, times = clips.all_frames(data)
    frames = Frames(open_store(str(tmp_path)), 0.02)
    assert len(times) == 20 and np.array_equal(frames.at("v.mp4", float(times[0])), wanted[0])


def test_each_run_of_a_fragment_counts_from_the_same_place(tmp_path: Path) -> None:
    """The run of the last fragment is cut in two, each with an offset of its own."""
    data = noise(tmp_path / "v.mp4", "frag_keyframe+empty_moov+default_base_moof", {})
    expected = table_of(data)
    data = data[: data.rindex(b"mfra") - 4]
    at = data.rindex(b"trun") - 4
    length, _, bits, count, offset = struct.unpack_from(">I4sIIi", data, at)
    head = 24 if bits & 4 else 20
    width = (length - head) // count
    rows = data[at + head : at + length]
    sizes = expected.size[-count:]
    grown, half = 20, int(sizes[:2].sum())  # the head of the second run
    one = struct.pack(">IIi", bits, 2, offset + grown) + data[at + 20 : at + head] + rows[: 2 * width]
    two = struct.pack(">IIi", bits & ~4, count - 2, offset + grown + half) + rows[2 * width :]
    new = box(b"trun", one) + box(b"trun", two)
    out = bytearray(data[:at] + new + data[at + length :])
    for around in (b"traf", b"moof"):
        place = data.rindex(around) - 4
        out[place : place + 4] = struct.pack(">I", int.from_bytes(data[place : place + 4], "big") + grown)
    found = table_of(bytes(out))
    assert found.offset[:-count].tolist() == expected.offset[:-count].tolist()
    assert (found.offset[-count:] - expected.offset[-count:]).tolist() == [grown] * count
    assert found.size.tolist() == expected.size.tolist() and found.pts.tolist() == expected.pts.tolist()


def test_frames_are_cut_to_the_size_that_the_file_states(tmp_path: Path) -> None:
    path = tmp_path / "v.mp4"
    data = bytearray(noise(path, "", {}))
    at = data.rindex(b"avc1") + 28
    data[at : at + 4] = struct.pack(">HH", 122, 90)
    path.write_bytes(data)
    request = FrameRequest("v.mp4", 0.3)
    frames = Frames(open_store(str(tmp_path)), 0.02)
    found = frames.at(*request)
    assert frames.table("v.mp4") is not None
    assert found.shape == (90, 122, 3) and np.array_equal(found, frames.at_through_container(request))


@pytest.mark.parametrize("place", [0, 5, 7])
def test_a_decoder_that_met_other_parameter_sets_is_of_no_use_to_other_files(place: int, tmp_path: Path) -> None:
    data = noise(tmp_path / "v.mp4", "", {})
    table = table_of(data)
    packets = [data[at : at + size] for at, size in zip(*table.ranges(range(10)), strict=True)]
    decoder = Decoder(table.setup)
    run = Run(range(10), [3, 9])
    assert len(list(decoder.frames(run, packets))) == 2 and decoder.is_reusable
    at = 8 + int.from_bytes(table.setup.extradata[6:8], "big")
    other = table.setup.extradata[at + 3 :][: table.setup.extradata[at + 2]] + b"\0"
    packets[place] = struct.pack(">I", len(other)) + other + packets[place]
    assert len(list(decoder.frames(run, packets))) == 2
    assert not decoder.is_reusable


def test_hostile_boxes_are_given_up_soon(tmp_path: Path) -> None:
    deep = b""
    for _ in range(3000):
        deep = box(b"mdia", deep)
    with pytest.raises(NoTable, match="malformed"):
        table_of(box(b"moov", box(b"trak", deep)))
    data = noise(tmp_path / "v.mp4", "frag_keyframe+empty_moov+default_base_moof", {})
    data += box(b"free", b"") * 5000
    reads = []
    with pytest.raises(NoTable, match="many boxes"):
        read_table(lambda begin, end: reads.append(begin) or data[begin:end], len(data))
    assert len(reads) < 5000
    at, around = data.rindex(b"trun") - 4, [data.rindex(b"traf") - 4, data.rindex(b"moof") - 4]
    more = box(b"trun", bytes(8)) * 5000
    out = bytearray(data[:at] + more + data[at:])
    for place in around:
        out[place : place + 4] = struct.pack(">I", int.from_bytes(data[place : place + 4], "big") + len(more))
    with pytest.raises(NoTable, match="very long"):
        table_of(bytes(out))


def test_no_more_memory_than_a_table_is_worth() -> None:
    def read(begin: int, end: int) -> bytes:
        assert end - begin < 1 << 20
        return (struct.pack(">I4sQ", 1, b"moov", 1 << 40) + bytes(end - begin))[: end - begin]

    with pytest.raises(NoTable, match="very long moov"):
        read_table(read, 1 << 40)


def test_very_long_groups_are_streamed_by_a_container(videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.formats.avvideo.RUN_BYTES", 100)
    wanted, times = clips.all_frames((videos / "mp4").read_bytes())
    frames = Frames(open_store(str(videos)), 0.02)
    monkeypatch.setattr(Frames, "decode", lambda *_: pytest.fail("the packets were held"))
    assert np.array_equal(frames.at("mp4", float(times[20])), wanted[20])


@pytest.mark.parametrize("kind", ["mp4", "mkv"])
def test_there_is_no_frame_at_times_that_are_no_numbers(kind: str, tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(clips.movie(kind, seconds=1.0, audio=False))
    frames = Frames(open_store(str(tmp_path)), 0.02)
    for time in (float("nan"), float("inf"), -float("inf"), 1e300, -1e300):
        with pytest.raises(DataError, match="no frame within"):
            frames.at("v", time)
        which, _, _ = frames.extents(["v"], np.zeros(1, np.int64), np.array([time]))
        assert not len(which)


def test_no_two_requests_share_an_array_or_a_form(videos: Path) -> None:
    frames = Frames(open_store(str(videos)), 0.02)
    request = FrameRequest("mp4", 0.4)
    batch = frames.request([request, request._replace(form="gray"), request])
    first = batch.take(0)
    wanted = first.copy()
    first[:] = 0
    assert np.array_equal(batch.take(2), wanted)
    assert np.array_equal(batch.take(1), frames.at(*request._replace(form="gray")))


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_table_is_the_table(kind: str, videos: Path) -> None:
    table = table_of((videos / kind).read_bytes())
    arrays = sidecar._packed(table)
    assert arrays is not None
    assert sum(arrays[name].nbytes for name in ("frames", "ticks", "runs")) <= 8 * len(table.pts) + 16 * 60
    again = sidecar._table(arrays)
    for name in ("pts", "offset", "size", "keys", "begin", "order", "times"):
        assert np.array_equal(getattr(again, name), getattr(table, name)), name
    for name in ("setup", "time_base", "orientation", "end"):
        assert getattr(again, name) == getattr(table, name), name


def long_table(reordered: bool) -> Table:
    size = np.random.default_rng(0).integers(1000, 90_000, 12_000)
    pts = 512 * np.arange(len(size))
    if reordered:
        pts.reshape(-1, 4)[:] = pts.reshape(-1, 4)[:, [0, 3, 1, 2]]
    ones = np.ones(len(size), np.bool_)
    place = np.cumsum(size) - size
    setup = Setup("h264", bytes(40), (640, 480), None)
    return Table(setup, Fraction(1, 15360), 1, pts, place, size, pts % 2048 == 0, ones, np.full(len(size), 512))


@pytest.mark.parametrize(("reordered", "most"), [(False, 4.2), (True, 8.2)])
def test_a_kept_table_takes_four_or_eight_bytes_a_frame(reordered: bool, most: float) -> None:
    arrays = sidecar._packed(long_table(reordered))
    out = io.BytesIO()
    pack_arrays(out, arrays or {})
    assert len(out.getvalue()) / 12_000 <= most


def test_tables_of_a_bucket_are_kept_by_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    data, other = noise(tmp_path / "v.mp4", "+faststart", {}), noise(tmp_path / "w.mp4", "", {"g": "4"})
    with range_server() as server:

        def table_again(known: bytes) -> tuple[Table, int]:
            server.objects["data/v.mp4"] = known
            server.forget()
            table = Frames(RemoteStore("s3://bkt/data", **server.options), 0.02).table("v.mp4")
            assert table is not None
            return table, len(server.asked)

        wanted = table_of(data)
        assert table_again(data)[1] > 0
        table, asked = table_again(data)
        assert not asked and np.array_equal(table.offset, wanted.offset)
        (kept,) = (tmp_path / "cache" / "frames").iterdir()
        assert [one.kind for one in disk_cache(tmp_path / "cache").list()] == ["derived"]
        whole = kept.read_bytes()
        # what a crash or a bad disk leaves, and a link to nowhere
        for bad in (whole[:100], whole[: len(whole) // 2], bytes(len(whole)), whole[:-200] + b"\1" * 200, b""):
            kept.write_bytes(bad)
            caplog.clear()
            table, asked = table_again(data)
            assert asked and np.array_equal(table.pts, wanted.pts) and "read again" in caplog.text
            assert kept.read_bytes() == whole
        table, asked = table_again(other)
        assert asked and np.array_equal(table.size, table_of(other).size), "another version has a table of its own"
        assert disk_cache(tmp_path / "cache").clear(kind="derived") > 0
        assert table_again(data)[1] > 0


def test_a_cache_that_cannot_be_written_is_only_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "frames").write_text("no folder")
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sidecar, "KEPT_FROM", 1)
    noise(tmp_path / "v.mp4", "", {})
    assert Frames(open_store(str(tmp_path)), 0.02).table("v.mp4") is not None
    assert "cannot be kept" in caplog.text


@pytest.mark.parametrize("flags", ["+faststart", ""])
@pytest.mark.parametrize("cut", [1, 40, 3000])
def test_a_file_that_is_cut_short_is_not_read_in_silence(flags: str, cut: int, tmp_path: Path) -> None:
    data = noise(tmp_path / "v.mp4", flags, {})
    (tmp_path / "v.mp4").write_bytes(data[:-cut])
    noise(tmp_path / "good.mp4", flags, {})
    frames = Frames(open_store(str(tmp_path)), 0.02)
    batch = frames.request([FrameRequest("v.mp4", 0.1), FrameRequest("good.mp4", 0.1)])
    for _ in range(2):
        with pytest.raises(DataError, match=r"truncated|cannot be decoded") as raised:
            batch.take(0)
        assert raised.value.file == str(tmp_path / "v.mp4") and raised.value.kind == "bad-media"
    assert batch.take(1).shape == (96, 128, 3), "a damaged file does not spoil the others of its batch"
    which, _, _ = frames.extents(["v.mp4", "good.mp4"], np.array([0, 1]), np.array([0.1, 0.1]))
    assert set(which.tolist()) == {1}
    with pytest.raises(DataError, match="truncated"):
        AVDecoder(data[:-cut]).get_video()


def test_a_track_of_pictures_with_another_handler_is_left_to_the_container(tmp_path: Path) -> None:
    """FFmpeg takes it for video by its sample entry, and it comes first."""
    path = tmp_path / "v.mp4"
    with av.open(str(path), "w") as out:
        streams = [out.add_stream("libx264", rate=10, options={"g": "5", "bf": "0"}) for _ in range(2)]
        for stream in streams:
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for shade in range(10):
            for number, stream in enumerate(streams):
                pixels = np.full((48, 64, 3), 20 * shade + 50 * number, np.uint8)
                out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        for stream in streams:
            out.mux(stream.encode())
    data = path.read_bytes()
    assert table_of(data).pts.size == 10
    at = data.index(b"vide", data.index(b"moov"))
    path.write_bytes(data[:at] + b"meta" + data[at + 4 :])
    with pytest.raises(NoTable, match="another track"):
        table_of(path.read_bytes())
    wanted, times = clips.all_frames(path.read_bytes())
    assert np.array_equal(Frames(open_store(str(tmp_path)), 0.02).at("v.mp4", float(times[4])), wanted[4])


def test_frames_that_share_a_time_are_left_to_the_container(tmp_path: Path) -> None:
    data = noise(tmp_path / "v.mp4", "", {})
    at = data.rindex(b"stts")
    (step,) = struct.unpack_from(">I", data, at + 16)
    rows = struct.pack(">4sIIIIIIII", b"stts", 0, 3, 4, step, 1, 0, 15, step)
    data = replaced(data, b"stts", struct.pack(">I", 4 + len(rows)) + rows)
    with pytest.raises(NoTable, match="share a time"):
        table_of(data)
    (tmp_path / "v.mp4").write_bytes(data)
    wanted, _ = clips.all_frames(data)
    found = Frames(open_store(str(tmp_path)), 0.02).at("v.mp4", 4 * step / 10240)
    assert any(np.array_equal(found, wanted[number]) for number in (4, 5))


@pytest.mark.parametrize("container", ["mp4", "mpegts"])
def test_rates_above_a_thousand(container: str, tmp_path: Path) -> None:
    with av.open(str(tmp_path / "v"), "w", format=container) as out:
        stream = out.add_stream("libx264", rate=4000, options={"g": "10", "bf": "0", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(40):
            pixels = np.full((48, 64, 3), 6 * number, np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        out.mux(stream.encode())
    wanted, times = clips.all_frames((tmp_path / "v").read_bytes())
    frames = Frames(open_store(str(tmp_path)), 0.5 / 4000)
    for number in (3, 17, 4, 39, 0, 18):
        assert np.array_equal(frames.at("v", float(times[number])), wanted[number])


def bad_files(folder: Path) -> dict[str, bytes]:
    good = noise(folder / "good.mp4", "", {})
    with av.open(str(folder / "e.mp4"), "w", options={
        "encryption_scheme": "cenc-aes-ctr", "encryption_key": "76a6c65c5ea762046bd749a2e632ccbb",
        "encryption_kid": "a7e61c373e219033c21091fa607bf3b8",
    }) as out:  # fmt: skip
        stream = out.add_stream("libx264", rate=10, options={"g": "5", "bf": "0"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for shade in range(10):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), 20 * shade, np.uint8))))
        out.mux(stream.encode())
    moov = good.rindex(b"moov") - 4
    return {
        "moov missing": good[:moov],
        "moov twice as long": good[:moov] + struct.pack(">I", len(good)) + good[moov + 4 :],
        "encrypted": (folder / "e.mp4").read_bytes(),
        "empty": b"",
        "a page of an error": b"<html>403 Forbidden</html>" * 20,
    }


def test_bad_files_are_named(tmp_path: Path) -> None:
    for number, (what, data) in enumerate(bad_files(tmp_path).items()):
        path = tmp_path / f"v{number}.mp4"  # one that is written again in the same tick of the clock looks the same
        path.write_bytes(data)
        for time in (0.0, 0.3):
            with pytest.raises(DataError) as raised:
                Frames(open_store(str(tmp_path)), 0.02).at(path.name, time)
            assert raised.value.file == str(path), what
        with pytest.raises(DataError):
            AVDecoder(data).get_video()


def test_several_edits_are_those_of_the_container(tmp_path: Path) -> None:
    data = replaced(noise(tmp_path / "v.mp4", "", {}), b"elst", edits((500, 0), (700, 8192)))
    with pytest.raises(NoTable, match="several edits"):
        table_of(data)
    (tmp_path / "v.mp4").write_bytes(data)
    wanted, times = clips.all_frames(data)
    frames = Frames(open_store(str(tmp_path)), 0.02)
    for number in (0, 3, len(times) - 1):
        assert np.array_equal(frames.at("v.mp4", float(times[number])), wanted[number])


def test_a_camera_that_starts_late_has_no_frames_before(videos: Path) -> None:
    frames = Frames(open_store(str(videos)), 0.02)
    assert frames.at("late", 2.0).shape == (48, 64, 3)
    with pytest.raises(DataError, match="no frame within"):
        frames.at("late", 0.5)


def test_an_object_that_is_replaced_during_the_run_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("feedmill.formats.mp4.table.FIRST_READ", 4096)
    data, other = noise(tmp_path / "v.mp4", "", {}), noise(tmp_path / "w.mp4", "", {"g": "4"})
    with range_server() as server:
        server.objects["data/v.mp4"] = data
        frames = Frames(RemoteStore("s3://bkt/data", **server.options), 0.02)
        assert frames.at("v.mp4", 0.1).shape == (96, 128, 3)
        server.objects["data/v.mp4"] = other
        with pytest.raises(FeedmillError, match=r"changed|replaced|version"):
            frames.at("v.mp4", 1.2)
        again = Frames(RemoteStore("s3://bkt/data", **server.options), 0.02)
        assert np.array_equal(again.at("v.mp4", 1.2), clips.all_frames(other)[0][12])


def test_a_bucket_that_is_slow_gives_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("feedmill.formats.mp4.table.FIRST_READ", 4096)
    data = noise(tmp_path / "v.mp4", "", {})
    wanted, times = clips.all_frames(data)
    with range_server() as server:
        server.objects["data/v.mp4"], server.delay = data, 0.01
        server.fault = lambda number, *_: "503" if number % 3 == 1 else None
        batch = Frames(RemoteStore("s3://bkt/data", **server.options), 0.02).request(
            [FrameRequest("v.mp4", float(time)) for time in times[::5]]
        )
        for at, number in enumerate(range(0, len(times), 5)):
            assert np.array_equal(batch.take(at), wanted[number])
