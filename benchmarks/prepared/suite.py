"""Suite of preparing and loading, compared with Megatron Energon, on samples of 5 KB. README.md has details."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import peers
from benchmarks.lib import corpus
from benchmarks.lib.measure import Row, alternate, child, feedmill, run

PEERS = ("energon",)
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
SHARD = 5_000
SMALL = 10_000  # shards
DESCRIPTION = ("--sample-type", "CaptioningSample", "--field-map", '{"image": "jpg", "caption": "json[caption]"}')
CRUDE = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"


def ours(what: str, path: Path, *options: object) -> dict[str, Any]:
    """Run one measurement of Feedmill in a fresh process."""
    corpus.warm(path)
    return child(sys.executable, "prepared.peers.feedmill", what, path, *options)


def theirs(what: str, path: Path, *options: object) -> dict[str, Any]:
    """Run one measurement of Energon in a fresh process."""
    corpus.warm(path)
    return child(peers.need("energon"), "prepared.peers.energon", what, path, *options, env=peers.environment())


def script(package: str, what: str, path: Path, *options: object) -> dict[str, Any]:
    """Run one measurement of the script that works with either package."""
    corpus.warm(path)
    mine = package.startswith("feedmill")
    python = sys.executable if mine else peers.need("energon")
    return child(
        python,
        "prepared.peers.training_script",
        package,
        what,
        path,
        *options,
        env=None if mine else peers.environment(),
    )


def with_peer(measure: Callable[[], dict[str, float]]) -> Callable[[], dict[str, float]] | None:
    """Return the measurement if Energon is installed, else None."""
    return measure if peers.python("energon") else None


def prepared(shards: int) -> Path:
    """Return a corpus that Feedmill has prepared, with a second description for crude samples."""
    path = corpus.shards(shards, SHARD)
    if not (path / ".nv-meta" / "index.sqlite").exists():
        corpus.unprepare(path)
        run(feedmill("prepare", path, "--non-interactive", "--split-ratio", "1,0,0", *DESCRIPTION))
    (path / ".nv-meta" / "crude.yaml").write_text(CRUDE)
    return path


# Preparing: whole commands, from an unprepared folder each time.


def _prepare_ours(path: Path, *options: str) -> dict[str, float]:
    corpus.unprepare(path)
    corpus.warm(path)
    return _command_ours(path, *options)


def _command_ours(path: Path, *options: str) -> dict[str, float]:
    extra = () if path.suffix == ".jsonl" else ("--non-interactive", "--split-ratio", "1,0,0", *DESCRIPTION, *options)
    return run(feedmill("prepare", path, *extra))


def _prepare_theirs(path: Path) -> dict[str, float]:
    corpus.unprepare(path)
    corpus.warm(path)
    command = [peers.program("energon", "energon"), "prepare", str(path)]
    if path.suffix != ".jsonl":
        command += ["--non-interactive", "--no-progress", "--num-workers", str(CORES), "--split-ratio", "1,0,0"]
        command += DESCRIPTION
    return run(command, peers.environment())


def _prepare_rows(part: str, shards: int, wanted: float, repeat: int) -> Iterable[Row]:
    path = corpus.shards(shards, SHARD)
    name = f"prepare {shards * SHARD:,} samples"
    _prepare_ours(path)  # not counted: fills the cache of compiled code
    a, b = alternate(repeat, partial(_prepare_ours, path), with_peer(partial(_prepare_theirs, path)))
    peak = b.get("peak_mb", [])
    yield Row(part, name, "s", a["s"], b.get("s", []), wanted, note="whole command, with a hash of every shard")
    yield Row(part, f"{name}: peak memory", "MB", a["peak_mb"], peak, note="largest process")
    without, _ = alternate(repeat, partial(_prepare_ours, path, "--no-hash"), None)
    yield Row(part, f"{name}, --no-hash", "s", without["s"], b.get("s", []), note="as Energon, which hashes nothing")
    took, _ = alternate(min(repeat, 3), lambda: ours("steps", path), None)
    took.pop("wall")
    for step, seconds in took.items():
        yield Row(part, f"  of it: {step}", "s", seconds, note="by itself")
    prepared(shards)


def prepare(repeat: int) -> Iterable[Row]:
    """Measure the command on 40,000 samples, where startup weighs most, and its steps."""
    yield from _prepare_rows("prepare", 8, 6, repeat)


def prepare_large(repeat: int) -> Iterable[Row]:
    """Measure the command on 400,000 samples: the steady state."""
    yield from _prepare_rows("prepare-large", 80, 10, min(repeat, 3))


def prepare_small(repeat: int) -> Iterable[Row]:
    """Measure the command, and a check, on 10,000 shards of two samples: what each shard costs."""
    with TemporaryDirectory(dir=corpus.folder()) as folder:
        paths = [corpus.linked(corpus.shards(SMALL, 2), Path(folder) / str(turn)) for turn in range(repeat)]
        new, old = iter(paths), iter(paths)
        made, _ = alternate(repeat, lambda: _command_ours(next(new)), None)
        checked, _ = alternate(repeat, lambda: run(feedmill("check", next(old))), None)
    note = "whole command, processor time"
    yield Row("prepare-small", f"prepare {SMALL:,} shards of two samples", "s", made["cpu_s"], bound=6, note=note)
    yield Row("prepare-small", "check them", "s", checked["cpu_s"], bound=4, note=note)


def jsonl(repeat: int) -> Iterable[Row]:
    """Measure indexing a JSONL file."""
    path = corpus.jsonl(200_000)
    _prepare_ours(path)
    a, b = alternate(repeat, partial(_prepare_ours, path), with_peer(partial(_prepare_theirs, path)))
    size = f"{corpus.size(path) / 1e6:.0f} MB"
    yield Row("jsonl", "prepare 200,000 lines", "s", a["s"], b.get("s", []), note=f"whole command, {size}")


# Loading: one loader without workers; the rate once the first samples are there.


def load(repeat: int) -> Iterable[Row]:
    """Measure stored order: Energon's validation mode."""
    path = prepared(8)
    for what, wanted, count, images in (
        ("stored order, raw", 20, 39_000, ()),
        ("stored order, images as float32 tensors", None, 4_000, ("--images", "torchrgb")),
    ):
        args = (path, "--count", count, *images)
        a, b = alternate(repeat, partial(ours, "order", *args), with_peer(partial(theirs, "order", *args)))
        yield Row("load", what, "/s", a["per_s"], b.get("per_s", []), wanted, note="Energon: validation mode")
        whole = f"{what}: whole process, {count:,} samples"
        yield Row("load", whole, "s", a["wall"], b.get("wall", []), note="with start-up and imports")
    args = (path, "--count", 4_000, "--images", "rgb8")
    a, _ = alternate(repeat, partial(ours, "order", *args), None)
    yield Row("load", "stored order, images as uint8 arrays", "/s", a["per_s"], note="Feedmill's default decoding")


def shuffled(repeat: int) -> Iterable[Row]:
    """Measure training order: the mean of 60,000 samples, during which Energon slows down by a factor of ten."""
    path, count = prepared(8), 60_000
    for what, buffer in (("no shuffle buffer", 0), ("a buffer of 1,000", 1_000)):
        args = (path, "--shuffle", "block", "--count", count)
        peer_runs = with_peer(partial(theirs, "order", *args, "--buffer", buffer))
        a, b = alternate(min(repeat, 2), partial(ours, "order", *args), peer_runs)
        name = f"shuffled, raw, mean of {count:,}; Energon with {what}"
        yield Row("shuffled", name, "/s", a["per_s"], b.get("per_s", []), 50, note="Feedmill: block shuffle")
    a, _ = alternate(repeat, partial(ours, "order", path, "--shuffle", "global", "--count", count), None)
    yield Row("shuffled", "shuffled, raw, global shuffle", "/s", a["per_s"], note="every sample from anywhere")
    args = (path, "--shuffle", "block", "--count", 4_000, "--images", "torchrgb")
    a, b = alternate(repeat, partial(ours, "order", *args), with_peer(partial(theirs, "order", *args)))
    name = "shuffled, images as float32 tensors, mean of 4,000"
    yield Row("shuffled", name, "/s", a["per_s"], b.get("per_s", []), note="Energon at its beginning, without a buffer")


def flat(_repeat: int) -> Iterable[Row]:
    """Measure one long run in windows, to see whether speed and memory stay constant."""
    path = prepared(80)
    long = ours("windows", path, "--shuffle", "block", "--count", 50_000, "--windows", 10)
    yield from _window_rows("Feedmill, 500,000 samples", long)
    if peers.python("energon"):
        short = theirs("windows", prepared(8), "--shuffle", "block", "--count", 10_000, "--windows", 6)
        yield from _window_rows("Energon, 60,000 samples", short, theirs=True)


def _window_rows(who: str, found: dict[str, Any], theirs: bool = False) -> Iterable[Row]:
    rates, memory = found["per_s"], found["memory_mb"]
    names = (
        ("first window", "/s", [rates[0]]),
        ("slowest window", "/s", [min(rates)]),
        ("fastest window", "/s", [max(rates)]),
        ("memory growth after the first window", "MB", [memory[-1] - memory[0]]),
    )
    for name, unit, values in names:
        row = Row("flat", f"{who}: {name}", unit, [] if theirs else values, values if theirs else [])
        row.note = f"{len(rates)} windows of equal size, shuffled, raw"
        yield row


def keys(repeat: int) -> Iterable[Row]:
    """Measure random parts by file name, on one thread."""
    path, count = prepared(8), 20_000
    rng = random.Random(1)
    names = [f"{rng.randrange(8 * SHARD):09d}.{rng.choice(('jpg', 'json'))}" for _ in range(count)]
    listed = corpus.folder() / "names.json"
    listed.write_text(json.dumps(names))
    args = (path, "--names", listed)
    a, b = alternate(repeat, partial(ours, "keys", *args), with_peer(partial(theirs, "keys", *args)))
    assert len({*a["bytes"], *b.get("bytes", a["bytes"])}) == 1, "the two sides read different bytes"
    note = f"{count:,} random names, one thread"
    yield Row("keys", "access by key", "/s", a["per_s"], b.get("per_s", []), 5, note=note)
    yield Row("keys", "open, and get the first part", "s", a["open"], b.get("open", []), note="imports not counted")


def first(repeat: int) -> Iterable[Row]:
    """Measure the time from the start of a process to the first decoded sample."""
    path = prepared(8)
    recipe = corpus.folder() / "first.yaml"
    recipe.write_text(f"source: {path}\n")
    a, b = alternate(repeat, partial(ours, "first", path), with_peer(partial(theirs, "first", path)))
    note = "start of the interpreter, imports, open, plan, one decoded sample, exit"
    yield Row("first", "first sample, whole process", "s", a["wall"], b.get("wall", []), bound=0.5, note=note)
    a, _ = alternate(repeat, partial(ours, "first", path, "--recipe", recipe), None)
    yield Row("first", "first sample of a recipe, whole process", "s", a["wall"], bound=0.5, note="reads YAML too")


OURS, THEIRS = "feedmill.compat.energon", "megatron.energon"


def captions(repeat: int) -> Iterable[Row]:
    """Measure one training script with its import changed: batches of 32 decoded pictures with their captions."""
    path = prepared(8)
    for workers, wanted in ((0, 3), (2, 5)):
        args = ("captions", path, "--workers", workers)
        a, b = alternate(repeat, partial(script, OURS, *args), with_peer(partial(script, THEIRS, *args)))
        name = f"captioning batches of 32, float32 images, {workers} workers"
        yield Row("captions", name, "/s", a["per_s"], b.get("per_s", []), wanted, note="the same script; samples")


def dropin_workers(repeat: int) -> Iterable[Row]:
    """Measure one training script with its import changed: two workers, none, and Energon with two."""
    path = prepared(8)
    for what, name, batch, count, energons in (
        ("crude", "crude samples one by one", 0, 60_000, 4_000),
        ("crude", "crude samples, batches of 32", 32, 400_000, 4_000),
        ("encoded", "encode_sample in Python, batches of 32", 32, 150_000, 4_000),
        ("captions", "captioning batches of 32, float32 images", 32, 30_000, 6_400),
    ):
        args = (what, path, "--batch", batch, "--workers")
        two = partial(script, OURS, *args, 2, "--count", count)
        a, b = alternate(repeat, two, partial(script, OURS, *args, 0, "--count", count))
        row = f"{name}: 2 workers beside 0"
        yield Row("dropin-workers", row, "/s", a["per_s"], b["per_s"], 0.97, note="both Feedmill; the same script")
        if peers.python("energon"):
            a, b = alternate(min(repeat, 3), two, with_peer(partial(script, THEIRS, *args, 2, "--count", energons)))
            yield Row("dropin-workers", f"{name}, 2 workers", "/s", a["per_s"], b["per_s"], note="the same script")


def aux(repeat: int) -> Iterable[Row]:
    """Measure one script with its import changed: cookers that read files by name from an auxiliary dataset."""
    path = prepared(8)
    rng = random.Random(1)
    names = [f"{rng.randrange(8 * SHARD):09d}.{rng.choice(('jpg', 'json'))}" for _ in range(20_000)]
    listed = corpus.folder() / "aux.json"
    listed.write_text(json.dumps(names))
    rows = [json.dumps({"names": names[first : first + 20]}) for first in range(0, len(names), 20)]
    listed.with_suffix(".jsonl").write_text("\n".join(rows) + "\n")
    run(feedmill("prepare", listed.with_suffix(".jsonl")))
    listed.with_suffix(".yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"
        f"  train:\n    path: aux.jsonl\n    aux: {{media: {path.name}}}\n"
    )
    args = ("by_name", path, "--names", listed)
    a, b = alternate(repeat, partial(script, OURS, *args), with_peer(partial(script, THEIRS, *args)))
    assert len({*a["bytes"], *b.get("bytes", a["bytes"])}) == 1, "the two sides read different bytes"
    note = "the same script; files, 20 to a sample, in random order"
    yield Row("aux", "auxiliary files by name in a cooker", "/s", a["per_s"], b.get("per_s", []), 8, note=note)


PARTS: dict[str, Callable[[int], Iterable[Row]]] = {
    "prepare": prepare,
    "prepare-large": prepare_large,
    "prepare-small": prepare_small,
    "jsonl": jsonl,
    "load": load,
    "shuffled": shuffled,
    "flat": flat,
    "keys": keys,
    "first": first,
    "captions": captions,
    "dropin-workers": dropin_workers,
    "aux": aux,
}
