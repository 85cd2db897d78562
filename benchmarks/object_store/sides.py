"""One cold measurement of a loader on the server, and the rows of a comparison of several."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import peers
from benchmarks.lib import corpus
from benchmarks.lib.measure import Failed, Measure, Row, child, rounds
from benchmarks.object_store import data
from benchmarks.object_store.server import Server, settings

TIMEOUT = 300
"""Seconds after which a loader counts as hung."""
IN_FLIGHT, REQUEST = 16, 4 << 20
"""Large requests in flight, as Feedmill begins with, and their size."""


class Peer(NamedTuple):
    """A loader that Feedmill is measured beside.

    Attributes:
        name: its name in the table.
        python: whose Python has it, by `peers.toml`.
        package: what is imported.
    """

    name: str
    python: str
    package: str


PEERS = {
    "streaming": Peer("MosaicML Streaming", "streaming", "streaming"),
    "litdata": Peer("LitData", "streaming", "litdata"),
    "webdataset": Peer("webdataset", "streaming", "webdataset"),
    "s3torch": Peer("s3torchconnector", "streaming", "s3torchconnector"),
    "energon": Peer("Energon", "energon", "megatron.energon"),
}


@functools.cache
def available(peer: str) -> bool:
    """Whether a peer can be measured; if not, what to do is printed, once."""
    name, owner, package = PEERS[peer]
    python = peers.python(owner)
    if python is None:
        return False  # run.py has said so
    if peer == "webdataset" and shutil.which("curl") is None:
        print("not measured beside webdataset: install curl", file=sys.stderr)
        return False
    look = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    if subprocess.run([python, "-c", look], capture_output=True, check=False).returncode:
        wanted = ", ".join(peers.table()[owner]["requirements"])
        print(f"not measured beside {name}: {python} does not have it (it needs {wanted})", file=sys.stderr)
        return False
    return True


@functools.cache
def server() -> Server:
    """The server; it ends with this process, and its folder is deleted. Each run has its own, so runs do not clash."""
    folder = tempfile.mkdtemp(prefix="server-", dir=corpus.folder())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Server(data.root(), Path(folder))


@contextmanager
def cold(ms: int) -> Iterator[tuple[Path, dict[str, str]]]:
    """An empty folder for whatever a loader keeps, and the variables that name it and the server."""
    with tempfile.TemporaryDirectory(prefix="cold-", dir=corpus.folder(), ignore_cleanup_errors=True) as name:
        folder = Path(name)
        variables = {"TMPDIR": name, "FEEDMILL_CACHE_DIR": str(folder / "cache")}
        yield folder, {**variables, **settings(server().endpoint(ms), folder)}


def ours(ms: int, module: str, *words: object, extra: Mapping[str, str] | None = None) -> dict[str, Any]:
    """One measurement of Feedmill, or of obstore alone, with an empty cache; see `_counted`."""
    return _counted(ms, sys.executable, f"object_store.peers.{module}", words, {**os.environ, **(extra or {})})


def theirs(ms: int, peer: str, *words: object) -> dict[str, Any]:
    """One measurement of a peer, likewise. Nothing where it fails: that is printed, and the others go on."""
    python = peers.need(PEERS[peer].python)
    try:
        return _counted(ms, python, f"object_store.peers.{peer}", words, peers.environment())
    except Failed as error:
        print(f"{PEERS[peer].name}: {error}", file=sys.stderr, flush=True)
        return {}


def script(ms: int, package: str, *words: object) -> dict[str, Any]:
    """One measurement of the training script that runs with Feedmill's face or with Energon itself."""
    mine = package.startswith("feedmill")
    python = sys.executable if mine else peers.need("energon")
    environment = dict(os.environ) if mine else peers.environment()
    try:
        found = _counted(ms, python, "prepared.peers.training_script", (package, *words), environment)
    except Failed as error:
        if mine:
            raise
        print(f"Energon: {error}", file=sys.stderr, flush=True)
        return {}
    return {"rate": found["per_s"], **{name: found[name] for name in ("requests", "mb")}}


def _counted(
    ms: int, python: str, module: str, words: tuple[object, ...], environment: Mapping[str, str]
) -> dict[str, Any]:
    """A measurement in a process of its own, with an empty cache, and what the server answered meanwhile."""
    with cold(ms) as (_, variables):
        mark = server().mark()
        found = child(python, module, *words, env={**environment, **variables}, timeout=TIMEOUT)
        traffic = server().since(mark)
    return {**found, "requests": traffic.requests, "mb": traffic.bytes / 1e6, "again_mb": traffic.again / 1e6}


class Comparison(NamedTuple):
    """What is measured, for one latency and one number of workers.

    Attributes:
        part, what: as in `Row`.
        sides: Feedmill as ``feedmill``; its loader on the same files as ``local`` and obstore alone as ``bare``, in
            seconds for all samples; the others are peers.
        samples: samples of the data.
        bytes: of the data; 0 if not all of it is read.
        files: shards of the data.
        wanted: how many times as fast as the best peer.
    """

    part: str
    what: str
    sides: Mapping[str, Measure]
    samples: int
    bytes: int
    files: int
    wanted: float


def rows(comparison: Comparison, repeat: int) -> Iterable[Row]:
    """Measure all sides in turns. The targets are in the rows of the best peer and of the lesser reference."""
    part, what, sides, samples, size, files, wanted = comparison
    found = rounds(repeat, sides)
    mine = found.pop("feedmill")
    yield Row(part, what, "/s", mine["rate"], note=traffic(mine))
    if bare := found.get("bare"):
        bare["rate"] = [samples / seconds for seconds in bare["s"]]
    references = {"local": "the same loader on local files", "bare": f"bare obstore, {IN_FLIGHT} requests in flight"}
    for chosen, least in ((set(found) - set(references), wanted), (set(references) & set(found), 0.8)):
        rates = {side: found[side]["rate"] for side in found if side in chosen and found[side].get("rate")}
        if not rates:
            continue
        medians = {side: statistics.median(values) for side, values in rates.items()}
        limit = min(medians, key=medians.__getitem__) if least < 1 else max(medians, key=medians.__getitem__)
        for side, values in rates.items():
            name = references.get(side) or PEERS[side].name
            target = least if side == limit else None
            yield Row(part, f"  beside {name}", "/s", mine["rate"], values, target, note=traffic(found[side]))
    if size:
        share = [mb * 1e6 / size for mb in mine["mb"]]
        yield Row(part, "  bytes fetched / bytes of the data", "x", share, bound=1.1, note=f"{size / 1e6:.0f} MB")
        most = size // REQUEST + files
        note = f"bytes / 4 MiB + {files} shards"
        yield Row(part, "  requests", "requests", mine["requests"], bound=most, note=note)


def traffic(numbers: Mapping[str, list[float]]) -> str:
    """The medians of what was asked for, and of the seconds before the first batch."""
    median = {name: statistics.median(values) for name, values in numbers.items() if values}
    parts = [f"{median['requests']:.0f} requests, {median['mb']:.0f} MB"] if median.get("requests") else []
    if "first" in median:
        parts.append(f"open {median['open']:.2f} s, first batch {median['first']:.2f} s")
    return "; ".join(parts)
