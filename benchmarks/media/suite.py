"""Suite of media metadata, compared with Energon, and video clips, compared with PyAV. README.md has details."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.lib import corpus
from benchmarks.lib.measure import Failed, Row, alternate, child, feedmill, rounds, run
from benchmarks.media import rows as rows_of
from benchmarks.media.windows import WARM
from benchmarks.prepared.suite import CORES, DESCRIPTION, with_peer

PEERS = ("energon", "lerobot")

CLIPS, SHARDS = 200, 4
DIFFERENT = 20
"""Number of different videos; each one occurs ten times."""
OPTION = "--media-metadata-by-extension"


def videos() -> Path:
    """Return 200 clips with sound, as files in ``files/`` and in four prepared shards.

    They have 8 to 12 seconds of 320 x 240 pixels, 25 frames per second and a key frame every 2 seconds.
    """
    path = corpus.folder() / f"videos_{CLIPS}"
    if (path / ".complete").exists():
        return path
    shutil.rmtree(path, ignore_errors=True)
    (path / "files").mkdir(parents=True)
    (path / "wds").mkdir()
    for shard in range(SHARDS):
        with tarfile.open(path / "wds" / f"{shard}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(shard * CLIPS // SHARDS, (shard + 1) * CLIPS // SHARDS):
                data = _clip(number % DIFFERENT)
                (path / "files" / f"{number:04d}.mp4").write_bytes(data)
                info = tarfile.TarInfo(f"{number:04d}.mp4")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    run(feedmill("prepare", path / "wds", "--non-interactive"))
    (path / ".complete").touch()
    return path


@cache
def _clip(number: int) -> bytes:
    import av
    import numpy as np

    rng = np.random.default_rng(number)
    rows, columns = np.mgrid[0:240, 0:320].astype(np.uint8)  # shades wrap around at 256
    speed = rng.integers(1, 9, 4)
    grain = rng.integers(0, 6, (240, 320, 3), dtype=np.uint8)
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        video = container.add_stream("libx264", rate=25)
        video.width, video.height, video.pix_fmt, video.gop_size = 320, 240, "yuv420p", 50
        video.options = {"preset": "veryfast"}
        sound = container.add_stream("aac", rate=16_000, layout="mono")
        for at in range(25 * (8 + number % 5)):
            moved = (at * speed % 256).astype(np.uint8)
            planes = [columns + moved[0], rows * 2 - moved[1], columns + rows + moved[2]]
            pixels = np.stack(planes, -1) + np.roll(grain, moved[3], 1)
            for packet in video.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
            frame = av.AudioFrame.from_ndarray(rng.integers(-999, 999, (1, 640), dtype=np.int16), "s16", "mono")
            frame.sample_rate, frame.pts = 16_000, 640 * at
            for packet in sound.encode(frame):
                container.mux(packet)
        for stream in (video, sound):
            for packet in stream.encode():
                container.mux(packet)
    return out.getvalue()


def prepare_media(repeat: int) -> Iterable[Row]:
    """Measure `prepare` with the sizes of 40,000 JPEGs, whole commands; and `prepare-media` on prepared data."""
    path = corpus.shards(8, 5_000)

    def ours() -> dict[str, float]:
        corpus.unprepare(path)
        corpus.warm(path)
        return run(feedmill("prepare", path, "--non-interactive", "--split-ratio", "1,0,0", *DESCRIPTION, OPTION))

    def theirs() -> dict[str, float]:
        corpus.unprepare(path)
        corpus.warm(path)
        common = ("--non-interactive", "--no-progress", "--num-workers", str(CORES), "--split-ratio", "1,0,0")
        return run([_energon(), "prepare", str(path), *common, *DESCRIPTION, OPTION], peers.environment())

    ours()
    a, b = alternate(repeat, ours, with_peer(theirs))
    yield Row("prepare-media", "prepare with media metadata, 40,000 images", "s", a["s"], b.get("s", []), 6)
    ours()
    a, b = alternate(
        repeat,
        lambda: run(feedmill("edit", "prepare-media", path, OPTION)),
        with_peer(lambda: run([_energon(), "prepare-media", str(path), "--no-progress", OPTION], peers.environment())),
    )
    yield Row("prepare-media", "prepare-media, 40,000 images", "s", a["s"], b.get("s", []), note="whole command")
    files = videos() / "files"
    a, b = alternate(repeat, partial(_folder, files, _ours_on), with_peer(partial(_folder, files, _theirs_on)))
    yield Row("prepare-media", f"prepare-media, folder of {CLIPS} videos with sound", "s", a["s"], b.get("s", []))


def _energon() -> str:
    return peers.program("energon", "energon")


def _folder(path: Path, command: Callable[[Path], tuple[list[str], dict[str, str] | None]]) -> dict[str, float]:
    shutil.rmtree(path / ".nv-meta", ignore_errors=True)
    corpus.warm(path)
    words, env = command(path)
    return run(words, env)


def _ours_on(path: Path) -> tuple[list[str], dict[str, str] | None]:
    return feedmill("edit", "prepare-media", path, OPTION), None


def _theirs_on(path: Path) -> tuple[list[str], dict[str, str] | None]:
    words = [_energon(), "prepare-media", str(path), "--no-progress", "--num-workers", str(CORES), OPTION]
    return words, peers.environment()


def video(repeat: int) -> Iterable[Row]:
    """Measure the metadata, and five uniform clips of one second, of each of 200 videos."""
    path = videos()
    ours, bare = (partial(_clips, sys.executable, how, path) for how in ("feedmill", "pyav"))
    for cores in dict.fromkeys((1, CORES)):
        a, b = alternate(repeat, partial(ours, cores), partial(bare, cores))
        assert {*a["frames"]} == {*b["frames"]} and {*a["sum"]} == {*b["sum"]}, "the two sides decoded different frames"
        note = f"metadata and 5 clips of 1 s each of {CLIPS} videos; the same pixels"
        what = "videos on one core" if cores == 1 else f"videos on {cores} cores"
        yield Row("video", f"{what}, bare PyAV with key-frame seek", "/s", a["per_s"], b["per_s"], 1, note=note)
        yield Row("video", "the same, processor time", "s", a["cpu"], b["cpu"], note="of the process")
    if peers.python("energon"):
        theirs = partial(_clips, peers.need("energon"), "energon", path, 1, env=peers.environment())
        a, b = alternate(max(repeat // 2, 1), partial(ours, 1), theirs)
        yield Row("video", "videos on one core, Energon's AVDecoder", "/s", a["per_s"], b["per_s"])


def _clips(python: str, how: str, path: Path, cores: int, env: dict[str, str] | None = None) -> dict[str, Any]:
    corpus.warm(path)
    found = child(python, f"media.peers.{how}", "clips", path, cores, env=env or dict(os.environ))
    found.pop("wall")
    return found


KINDS = {
    "h264-2": ("libx264", {"g": "2", "bf": "0", "preset": "veryfast", "sc_threshold": "0"}),
    "av1-2": ("libsvtav1", {"g": "2", "preset": "12", "crf": "30"}),
    "h264-30": ("libx264", {"g": "30", "bf": "3", "preset": "veryfast", "sc_threshold": "0"}),
    "av1-30": ("libsvtav1", {"g": "30", "preset": "12", "crf": "30"}),
}
"""Videos of robots by codec and frames of a group: LeRobot writes AV1 with groups of 2."""
FRAMES = 240


def robot_videos() -> Path:
    """Return a folder with a video of each kind: 240 frames of 640 x 480 pixels at 30 a second."""
    path = corpus.folder() / f"robot_videos_{FRAMES}"
    if (path / ".complete").exists():
        return path
    import av
    import numpy as np

    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    rng = np.random.default_rng(0)
    scene = np.kron(rng.integers(0, 255, (76, 96, 3), np.uint8), np.ones((16, 16, 1), np.uint8))
    noise = rng.integers(0, 8, (8, 480, 640, 3), np.uint8)
    for kind, (codec, options) in KINDS.items():
        with av.open(str(path / f"{kind}.mp4"), "w") as out:
            stream = out.add_stream(codec, rate=30, options=options)
            stream.width, stream.height, stream.pix_fmt = 640, 480, "yuv420p"
            for at in range(FRAMES):
                pixels = scene[at : at + 480, 2 * at : 2 * at + 640] // 2 + noise[at % 8]
                for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                    out.mux(packet)
            for packet in stream.encode():
                out.mux(packet)
    (path / ".complete").touch()
    return path


def frames(repeat: int) -> Iterable[Row]:
    """Measure random frames of robot videos, one by one and in batches of 32, beside seeking with PyAV."""
    path = robot_videos()
    for kind in KINDS:
        codec, group = kind.split("-")
        for together in (1, 32):
            ours = partial(child, sys.executable, "media.peers.feedmill", "frames", path / f"{kind}.mp4", together)
            bare = partial(child, sys.executable, "media.peers.pyav", "frames", path / f"{kind}.mp4", together)
            a, b = alternate(repeat, ours, bare)
            assert {*a["sum"]} == {*b["sum"]}, "the two sides decoded different frames"
            how = "one by one" if together == 1 else f"in batches of {together}"
            yield Row(
                "frames", f"random frames of {codec.upper()}, groups of {group}, {how}", "s", a["cpu"], b["cpu"], 1
            )


def robots() -> Path:
    """Return a data set of 600 frames of two cameras that LeRobot recorded with its own settings."""
    path = corpus.folder() / "robots"
    if not (path / "meta/info.json").exists():
        child(peers.need("lerobot"), "media.peers.lerobot", "make", path, env=peers.environment())
    return path


def row_samples() -> Path:
    """Return a prepared dataset of 100,000 conversations with 0 to 6 pictures; recipes of their rows lie beside it.

    Beside it are the processor of the recipes, of Qwen3-VL with a tokenizer of bytes, and the lengths of the samples.
    """
    import tokenizers

    root = corpus.folder() / f"rows_{rows_of.SAMPLES}"
    path, model = root / "samples", root / "processor"
    if (root / ".complete").exists():
        return path
    shutil.rmtree(root, ignore_errors=True)
    path.mkdir(parents=True)
    model.mkdir()
    pictures, each = rows_of.jpegs(), rows_of.SAMPLES // rows_of.SHARDS
    for shard in range(rows_of.SHARDS):
        with open(path / f"{shard:03d}.tar", "wb", buffering=1 << 20) as out:
            for number in range(shard * each, (shard + 1) * each):
                for part, data in rows_of.sample(number, pictures).items():
                    out.write(corpus.tar_header(f"{number:09d}.{part}", len(data)))
                    out.write(data.ljust(-(-len(data) // 512) * 512, b"\0"))
            out.write(b"\0" * 1024)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(tokenizers.models.BPE({sign: number for number, sign in enumerate(alphabet)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|image_pad|>", "<|vision_start|>", "<|vision_end|>"])
    made.save(str(model / "tokenizer.json"))
    (model / "chat_template.jinja").write_text(rows_of.TEMPLATE)
    size = {"shortest_edge": rows_of.LEAST, "longest_edge": rows_of.MOST}
    settings = {"patch_size": rows_of.SIDE // 2, "size": size, "processor_class": "Qwen3VLProcessor"}
    (model / "preprocessor_config.json").write_text(json.dumps(settings))
    for seq_len in SEQ_LENS:
        (root / f"rows_{seq_len}.yaml").write_text(
            f"source: {{path: samples, lengths: qwen}}\nepochs: 1\nlengths: {{qwen: {{processor: processor}}}}\n"
            f"pack: {{seq_len: {seq_len}, long: drop}}\n"
        )
    run(feedmill("prepare", path, "--non-interactive", "--split-ratio", "1,0,0"))
    run(feedmill("edit", "prepare-media", path, "--media-by-extension"))
    crude = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    (path / ".nv-meta" / "crude.yaml").write_text(crude)
    (root / ".complete").touch()
    return path


SEQ_LENS = (16_384, 65_536)
"""Tokens of rows."""


def rows(repeat: int) -> Iterable[Row]:
    """Measure rows of text and images that a plan packed, beside Energon's packing from a buffer of 1,000."""
    path = row_samples()
    os.environ["FEEDMILL_CACHE_DIR"] = str(path.parent / "cache")
    shutil.rmtree(path.parent / "cache", ignore_errors=True)
    counted = run(feedmill("tokens", "lengths", path, "--processor", path.parent / "processor", "--split", "train"))
    yield Row("rows", "lengths of 100,000 samples, processor time", "s", [counted["cpu_s"]], note="once, before")
    energon = partial(child, peers.need("energon"), "media.peers.energon", "rows", path, env=peers.environment())
    for seq_len in SEQ_LENS:
        sides: dict[str, Callable[[], dict[str, float]]] = {
            "knapsack": partial(energon, seq_len, "knapsack"),
            "documented": partial(energon, seq_len, "documented"),
            "ours": partial(child, sys.executable, "media.peers.feedmill", "rows", path, seq_len),
        }
        found = rounds(min(repeat, 3), sides)
        ours = found["ours"]
        if len({count for side in found.values() for count in side["samples"]}) > 1:
            counts = ", ".join(f"{name} {side['samples']}" for name, side in found.items())
            raise Failed(f"the sides loaded other samples: {counts}")
        for packer in ("documented", "knapsack"):
            theirs = found[packer]
            title = f"rows of {seq_len:,}, Energon's {packer} packer"
            speed = "tokens_per_cpu_s"
            yield Row("rows", f"{title}: tokens per second of processor time", "/s", ours[speed], theirs[speed], 1)
            for name, unit in (("fill", "%"), ("rows", "")):
                note = f"{ours['samples'][0]:,} samples"
                yield Row("rows", f"{title}: {name}", unit, ours[name], theirs[name], note=note)


def windows(repeat: int) -> Iterable[Row]:
    """Measure shuffled windows of robot videos per second of processor time, beside LeRobot's own data sets."""
    path = robots()
    for workers in (0, 2):
        for what, warm, name, *more in (
            ("data set", WARM, "whole", "torchcodec"),
            ("streaming data set", 0, "streaming"),
        ):
            ours = partial(child, sys.executable, "media.peers.feedmill", "windows", path, workers, warm)
            words = (name, path, workers, *more)
            theirs = partial(child, peers.need("lerobot"), "media.peers.lerobot", *words, env=peers.environment())
            a, b = alternate(repeat, ours, theirs)
            title = f"shuffled windows, {workers} workers, LeRobot's {what}"
            yield Row("windows", title, "/s", a["per_cpu_s"], b["per_cpu_s"], 3, note="of processor time")


def windows_bucket(repeat: int) -> Iterable[Row]:
    """Measure an epoch of shuffled windows from a bucket that answers after 20 ms, beside files, both Feedmill."""
    path = robots()
    sides = (partial(child, sys.executable, "media.peers.feedmill", "loaded", path, delay) for delay in (0.02, 0))
    a, b = alternate(repeat, *sides)
    yield Row("windows-bucket", "shuffled frames from a bucket, beside files", "/s", a["per_s"], b["per_s"], 0.8)
    yield Row("windows-bucket", "the same, processor time", "s", a["cpu"], b["cpu"])
    yield Row("windows-bucket", "bytes beside those that are needed", "", a["bytes_ratio"], bound=1.15)
    yield Row("windows-bucket", "requests beside 1.1 a group and 2 a file", "", a["requests_ratio"], bound=1.0)
    yield Row("windows-bucket", "bytes before the first batch beside all", "", a["first_bytes_share"])


PARTS: dict[str, Callable[[int], Iterable[Row]]] = {
    "prepare-media": prepare_media, "video": video, "frames": frames, "rows": rows, "windows": windows,
    "windows-bucket": windows_bucket,
}  # fmt: skip
