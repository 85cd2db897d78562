"""Run cold measurements of loaders on the server, and make the rows of their comparison."""

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
"""Number of large requests in flight with which Feedmill begins, and their size."""


class Peer(NamedTuple):
    """A loader that Feedmill is compared with.

    Attributes:
        name: its name in the table.
        python: entry of `peers.toml` whose Python has it.
        package: the package that is imported.
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
    """Return whether a peer can be measured; if not, print once what to do."""
    name, owner, package = PEERS[peer]
    python = peers.python(owner)
    if python is None:
        return False  # run.py has printed it
    if peer == "webdataset" and shutil.which("curl") is None:
        print("webdataset is not measured: curl is missing. Install curl.", file=sys.stderr)
        return False
    look = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    if subprocess.run([python, "-c", look], capture_output=True, check=False).returncode:
        wanted = ", ".join(peers.table()[owner]["requirements"])
        print(f"not measured beside {name}: {python} does not have it (it needs {wanted})", file=sys.stderr)
        return False
    return True


@functools.cache
def server() -> Server:
    """Return the server of this process. Its folder is separate from that of other runs, and deleted at the end."""
    folder = tempfile.mkdtemp(prefix="server-", dir=corpus.folder())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Server(data.root(), Path(folder))


@contextmanager
def cold(ms: int) -> Iterator[tuple[Path, dict[str, str]]]:
    """Create an empty folder for the caches of a loader, and return the variables for it and the server."""
    with tempfile.TemporaryDirectory(prefix="cold-", dir=corpus.folder(), ignore_cleanup_errors=True) as name:
        folder = Path(name)
        variables = {"TMPDIR": name, "FEEDMILL_CACHE_DIR": str(folder / "cache")}
        yield folder, {**variables, **settings(server().endpoint(ms), folder)}


def ours(ms: int, module: str, *words: object, extra: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run one measurement of Feedmill, or of obstore alone, with an empty cache; see `_counted`."""
    return _counted(ms, sys.executable, f"object_store.peers.{module}", words, {**os.environ, **(extra or {})})


def theirs(ms: int, peer: str, *words: object) -> dict[str, Any]:
    """Run one measurement of a peer, as `ours`. If it fails, print that and return nothing, so that others continue."""
    python = peers.need(PEERS[peer].python)
    try:
        return _counted(ms, python, f"object_store.peers.{peer}", words, peers.environment())
    except Failed as error:
        print(f"{PEERS[peer].name}: {error}", file=sys.stderr, flush=True)
        return {}


def script(ms: int, package: str, *words: object) -> dict[str, Any]:
    """Run one measurement of the training script, with Feedmill's drop-in module or with Energon."""
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
    """Run a measurement in a separate process with an empty cache, and add the traffic of the server."""
    with cold(ms) as (_, variables):
        mark = server().mark()
        found = child(python, module, *words, env={**environment, **variables}, timeout=TIMEOUT)
        traffic = server().since(mark)
    return {**found, "requests": traffic.requests, "mb": traffic.bytes / 1e6, "again_mb": traffic.again / 1e6}


class Comparison(NamedTuple):
    """A comparison of loaders, for one latency and one number of workers.

    Attributes:
        part, what: as in `Row`.
        sides: the measured loaders. ``feedmill`` is Feedmill, ``local`` its loader on local files, and ``bare`` obstore
            alone, in seconds for all samples; the others are peers.
        samples: number of samples of the data.
        bytes: bytes of the data; 0 if only a part is read.
        files: number of shards of the data.
        wanted: target ratio to the best peer.
    """

    part: str
    what: str
    sides: Mapping[str, Measure]
    samples: int
    bytes: int
    files: int
    wanted: float


def rows(comparison: Comparison, repeat: int) -> Iterable[Row]:
    """Measure all loaders alternately. The targets are in the rows of the best peer and of the slower reference."""
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
    """Return the medians of the traffic, and of the seconds before the first batch, as text."""
    median = {name: statistics.median(values) for name, values in numbers.items() if values}
    parts = [f"{median['requests']:.0f} requests, {median['mb']:.0f} MB"] if median.get("requests") else []
    if "first" in median:
        parts.append(f"open {median['open']:.2f} s, first batch {median['first']:.2f} s")
    return "; ".join(parts)
