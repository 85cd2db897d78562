"""Suite of plain tars, compared with webdataset, and MDS shards, compared with MosaicML's reader: undecoded samples."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from benchmarks import peers
from benchmarks.lib import corpus
from benchmarks.lib.measure import Failed, Row, alternate, child

PEERS = ("webdataset", "streaming")
SAMPLES, SHARDS = 20_000, 16


def tars() -> Path:
    """Return shards with samples of three parts of 4 to 6 KB; created once."""
    folder = corpus.folder() / f"plain_{SHARDS}x{SAMPLES // SHARDS}"
    if not (folder / "done").exists():
        folder.mkdir(exist_ok=True)
        rng, each = np.random.default_rng(0), SAMPLES // SHARDS
        for shard in range(SHARDS):
            with open(folder / f"shard-{shard:06d}.tar", "wb", buffering=1 << 20) as out:
                for number in range(shard * each, (shard + 1) * each):
                    for part in ("a.bin", "b.bin", "c.bin"):
                        data = rng.bytes(int(rng.integers(4000, 6000)))
                        out.write(corpus.tar_header(f"sample_{number:08d}.{part}", len(data)))
                        out.write(data.ljust(-(-len(data) // 512) * 512, b"\0"))
                out.write(b"\0" * 1024)
        (folder / "done").touch()
    corpus.warm(folder)
    return folder


def mds() -> Path:
    """Return MDS shards by MosaicML's writer, created once: a number, a text of 1 KB and 512 token ids per sample."""
    folder = corpus.folder() / f"mds_{SAMPLES}"
    if not (folder / "index.json").exists():
        program = (
            "import sys, numpy as np\nfrom streaming import MDSWriter\nrng = np.random.default_rng(0)\n"
            "columns = {'n': 'int', 'text': 'str', 'ids': 'ndarray:uint16'}\n"
            "with MDSWriter(out=sys.argv[1], columns=columns) as out:\n"
            f"    for n in range({SAMPLES}):\n"
            "        ids = rng.integers(0, 50000, 512, dtype=np.uint16)\n"
            "        out.write({'n': n, 'text': 'word ' * 200, 'ids': ids})\n"
        )
        done = subprocess.run(
            [peers.need("streaming"), "-c", program, str(folder)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Failed(done.stderr[-1500:])
    for path in folder.iterdir():
        corpus.warm(path)
    return folder


def plain(repeat: int) -> list[Row]:
    """Measure every sample of plain tars once, in stored order, in batches of 64."""
    folder, rows = tars(), []
    for workers, kinds in ((0, ("threads",)), (2, ("threads", "processes"))):
        for kind in kinds:
            found, peer = alternate(
                repeat,
                lambda w=workers, k=kind: child(sys.executable, "shards.peers.feedmill", "plain", folder, w, k),
                lambda w=workers: child(peers.need("webdataset"), "shards.peers.webdataset", "plain", folder, w, 64),
            )
            what = f"raw samples of plain tars, {workers} workers" + (f" ({kind})" if workers else "")
            wanted = (
                None if kind == "processes" else 4
            )  # processes are for transforms; without one, they only add pickling
            rows.append(Row("plain", what, "/s", found["per_s"], peer["per_s"], wanted=wanted, note="lists of 64"))
    found, peer = alternate(
        repeat,
        lambda: child(sys.executable, "shards.peers.feedmill", "plain", folder, 0, "threads"),
        lambda: child(peers.need("webdataset"), "shards.peers.webdataset", "plain", folder, 0, 0),
    )
    note = "the peer sample by sample"
    return [
        *rows,
        Row("plain", "raw samples of plain tars, 0 workers", "/s", found["per_s"], peer["per_s"], 4, note=note),
    ]


def streaming(repeat: int) -> list[Row]:
    """Measure every sample of MDS shards once, in one process."""
    folder, rows = mds(), []
    for order in ("in-order", "shuffled"):
        found, peer = alternate(
            repeat,
            lambda o=order: child(sys.executable, "shards.peers.feedmill", "mds", folder, o),
            lambda o=order: child(peers.need("streaming"), "shards.peers.streaming", "mds", folder, o),
        )
        if {*found["bytes"]} != {*peer["bytes"]}:
            raise Failed("Feedmill and the peer read different samples")
        rows.append(Row("mds", f"samples of MDS shards, {order}", "/s", found["per_s"], peer["per_s"], wanted=2))
    return rows


PARTS: dict[str, Callable[[int], Iterable[Row]]] = {"plain": plain, "mds": streaming}
