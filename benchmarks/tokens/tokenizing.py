"""Compare tokenizing with Modalities and datatrove: whole commands, and the steady state. README.md has details.

FEEDMILL_BENCH_TOKENIZER    a folder with GPT-2's tokenizer.json
FEEDMILL_BENCH_CORPUS       a program that is called with a file name and a size in MB, and writes a JSONL corpus
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.lib import corpus
from benchmarks.lib.measure import ROOT, Failed, Row, alternate, child, feedmill, run

TOKENIZER, MAKER = "FEEDMILL_BENCH_TOKENIZER", "FEEDMILL_BENCH_CORPUS"
SMALL, LARGE, HUGE = 50, 500, 2000  # MB
PEER_SMALL = 5


_BARE = """import sys
import numpy as np, orjson
from fastokens import Tokenizer
model = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
with open(sys.argv[2], "rb") as lines:
    texts = [orjson.loads(line)["text"] for line in lines]
ids, ends = model.encode_batch_flat(texts, True)
np.frombuffer(ids, np.uint32).astype("<u2").tofile(sys.argv[3])
np.frombuffer(ends, np.int64).tofile(sys.argv[3] + ".idx")"""


def text(size: int) -> Path:
    """Return a corpus of `megabytes`, created once."""
    if not (os.environ.get(TOKENIZER) and os.environ.get(MAKER)):
        raise Failed(f"set {TOKENIZER} and {MAKER}")
    path = corpus.folder() / f"text_{size}.jsonl"
    if not path.exists():
        made = path.with_suffix(".part")
        subprocess.run([sys.executable, os.environ[MAKER], str(made), str(size)], check=True, stdout=subprocess.DEVNULL)
        made.rename(path)
    corpus.warm(path)
    return path


def ours(size: int, workers: int) -> dict[str, float]:
    """Run Feedmill's command."""
    source, out = text(size), corpus.folder() / "tokens" / "feedmill"
    for left in out.parent.glob("feedmill.*"):  # not counted: deleting the output of the previous run
        left.unlink()
    words = ("tokenize", source, "-o", out, "-t", os.environ[TOKENIZER], "--workers", workers, "--overwrite")
    return run(feedmill(*words))


def modalities(size: int) -> dict[str, float]:
    """Run ``modalities data pack_encoded_data`` with one process; its raw index is made before and not counted."""
    source, out = text(size), corpus.folder() / "tokens"
    out.mkdir(exist_ok=True)
    python, index, config = peers.need("modalities"), out / f"{size}.idx", out / f"{size}.yaml"
    environment = {**peers.environment(), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    command = [python, "-m", "modalities", "data"]
    if not index.exists():
        run([*command, "create_raw_index", str(source), "--index_path", str(index)], environment)
    settings = {"src_path": source, "dst_path": out / "peer.pbin", "index_path": index, "jq_pattern": ".text"}
    settings |= {"num_cpus": 1, "eod_token": "<|endoftext|>", "processing_batch_size": 512}
    settings |= {"raw_samples_queue_size": 300, "processed_samples_queue_size": 300}
    folder = f"{{pretrained_model_name_or_path: {os.environ[TOKENIZER]}, padding: false, truncation: false}}"
    lines = [
        "settings:",
        *(
            f"  {name}: {str(value)!r}" if isinstance(value, Path | str) else f"  {name}: {value}"
            for name, value in settings.items()
        ),
    ]
    lines += [
        "tokenizer:",
        "  component_key: tokenizer",
        "  variant_key: pretrained_hf_tokenizer",
        f"  config: {folder}",
    ]
    config.write_text("\n".join(lines) + "\n")
    return run([*command, "pack_encoded_data", str(config), "--file_existence_policy", "override"], environment)


def datatrove(size: int) -> dict[str, float]:
    """Run one task of datatrove's `DocumentTokenizer`; its tokenizer uses all cores."""
    out = corpus.folder() / "tokens" / "datatrove"
    command = [peers.need("datatrove"), "-m", "benchmarks.tokens.peers.datatrove", "tokenize"]
    return run([*command, os.environ[TOKENIZER], str(text(size)), str(out)], peers.environment(), ROOT)


def _present() -> dict[str, Callable[[int], dict[str, float]]]:
    measures = {"Modalities": modalities, "datatrove": datatrove}
    return {name: measure for name, measure in measures.items() if peers.python(name.lower())}


def whole(repeat: int) -> list[Row]:
    """Measure the whole command on 50 MB, with one process."""
    rows = []
    for name, measure in _present().items():
        measure(PEER_SMALL)  # not counted: fills the cache of compiled code
        mine, peers = alternate(min(repeat, 3), lambda: ours(SMALL, 1), lambda measure=measure: measure(SMALL))
        rows.append(Row("tokenize", f"tokenize {SMALL} MB, whole command ({name})", "s", mine["s"], peers["s"], 12))
        small = [measure(PEER_SMALL)["s"] for _ in range(min(repeat, 3))]
        large = [ours(LARGE, 1)["s"] for _ in range(min(repeat, 3))]
        theirs = [(SMALL - PEER_SMALL) / (b - a) for a, b in zip(small, peers["s"], strict=True)]
        steady = [(LARGE - SMALL) / (b - a) for a, b in zip(mine["s"], large, strict=True)]
        rows.append(Row("tokenize", f"steady state ({name}), MB", "/s", steady, theirs, 30))
    return rows


def small(repeat: int) -> list[Row]:
    """Measure the whole command on 3 MB beside a script of the bare engine, by processor time."""
    source = text(3)
    bare_files = source.with_suffix(".bare")
    mine, bare = alternate(
        repeat,
        lambda: ours(3, 1),
        lambda: run([sys.executable, "-c", _BARE, os.environ[TOKENIZER], str(source), str(bare_files)]),
    )
    what = "tokenize 3 MB, whole command; beside: orjson, the engine, tofile"
    return [Row("tokenize-small", what, "s", mine["cpu_s"], bare["cpu_s"], 0.87, note="processor time")]


def engine(repeat: int) -> list[Row]:
    """Measure the steady state, the engine alone on the same text, and two processes compared with one."""
    found: dict[str, list[float]] = {}
    for _ in range(repeat):
        for workers in (1, 2):
            small, large = ours(SMALL, workers), ours(LARGE, workers)
            found.setdefault(f"{workers}", []).append(large["s"])
            found.setdefault(f"rate {workers}", []).append((LARGE - SMALL) / (large["s"] - small["s"]))
        for threads in ("one", "own"):
            told = child(sys.executable, "tokens.peers.engine", "bare", os.environ[TOKENIZER], text(LARGE), threads)
            found.setdefault(threads, []).append(told["rate"])
    huge = alternate(min(repeat, 3), lambda: ours(HUGE, 2), lambda: ours(HUGE, 1))
    return [
        Row(
            "tokenize-engine",
            "steady state, 1 process, MB; beside: engine, 1 thread",
            "/s",
            found["rate 1"],
            found["one"],
            0.8,
        ),
        Row(
            "tokenize-engine",
            "steady state, 2 processes, MB; beside: engine, own threads",
            "/s",
            found["rate 2"],
            found["own"],
            0.8,
        ),
        Row("tokenize-engine", f"{LARGE} MB, 2 processes; beside: 1 process", "s", found["2"], found["1"], 1.7),
        Row("tokenize-engine", f"{HUGE} MB, 2 processes; beside: 1 process", "s", huge[0]["s"], huge[1]["s"], 1.7),
        Row(
            "tokenize-engine",
            "steady state, 2 processes; beside: 1 process",
            "/s",
            found["rate 2"],
            found["rate 1"],
            1.7,
        ),
    ]


def memory(_: int) -> list[Row]:
    """Measure the peak memory of all processes together on 2 GB."""
    rows = []
    for workers in (1, 2):
        peak = _peak(lambda workers=workers: ours(HUGE, workers))
        rows.append(
            Row("tokenize-memory", f"peak of all processes, {HUGE} MB, {workers} workers", "MB", [peak], bound=600)
        )
    return rows


def _peak(measure: Callable[[], Any]) -> float:
    """Return the peak MB of the processes that `measure` starts: the sum of their proportional set sizes."""
    best, over = 0.0, threading.Event()

    def watch() -> None:
        nonlocal best
        while not over.wait(0.05):
            best = max(best, sum(map(_proportional, _descendants(os.getpid()))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        measure()
    finally:
        over.set()
        watcher.join()
    return best / 1e6


def _descendants(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            parents.setdefault(parent, []).append(int(name))
    found, todo = [], [root]
    while todo:
        inside = parents.get(todo.pop(), [])
        found += inside
        todo += inside
    return found


def _proportional(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


PARTS = {"tokenize": whole, "tokenize-small": small, "tokenize-engine": engine, "tokenize-memory": memory}
