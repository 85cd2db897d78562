"""Compare models with their own packages: static embeddings with model2vec, a classifier in ONNX with onnxruntime.

The corpus has 100,000 documents of words from a Zipf distribution, 40 in the median, with punctuation. The models have
random weights: vectors of 256 numbers, and an encoder of 2 layers of 128, which gets the first 20,000 documents. Of
Feedmill the whole command counts, with one worker; of the packages what lies between the texts in memory and the
results in memory.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks import peers
from benchmarks.curation.near import _vocabulary
from benchmarks.lib import corpus
from benchmarks.lib.measure import Failed, Row, child, feedmill, rounds, run

DOCUMENTS = 100_000
FEW, SOME = 20_000, 2_000
"""Documents that the classifier gets, and those that the packages get one by one."""
TOLERANCE = 1e-5


def made(python: str) -> Path:
    """Return the folder of the documents and models."""
    path = corpus.folder() / f"models_{DOCUMENTS}_{FEW}"
    if (path / ".complete").exists():
        return path
    shutil.rmtree(path, ignore_errors=True)
    (path / "documents").mkdir(parents=True)
    rng, words = np.random.default_rng(4), np.array(_vocabulary())
    bounds = np.cumsum(1 / (np.arange(len(words)) + 10.0))
    with open(path / "documents/0.jsonl", "w") as out:
        for number in range(DOCUMENTS):
            size = int(np.clip(rng.lognormal(np.log(40), 0.7), 3, 400))
            text = words[np.searchsorted(bounds, rng.random(size) * bounds[-1])].tolist()
            text = [word + "." if k % 11 == 10 else word + "," * (k % 7 == 6) for k, word in enumerate(text)]
            out.write(json.dumps({"id": str(number), "text": f"{' '.join(text).capitalize()}."}) + "\n")
    (path / "few/documents").mkdir(parents=True)
    with open(path / "documents/0.jsonl") as rows, open(path / "few/documents/0.jsonl", "w") as out:
        out.writelines(islice(rows, FEW))
    child(python, "curation.peers.models", "make", path)
    (path / ".complete").touch()
    return path


def _command(path: Path, kind: str) -> Callable[[], dict[str, float]]:
    data = path if kind == "static" else path / "few"

    def ours() -> dict[str, float]:
        for name in ("embeddings", "attributes"):
            shutil.rmtree(data / name, ignore_errors=True)
        verb = ("documents", "embed") if kind == "static" else ("tag",)
        model = ("--model", path / "static") if kind == "static" else ("-t", f"model:{path}/onnx", "--name", "m")
        return run(feedmill(*verb, data / "documents", *model, "--workers", 1))

    return ours


def models(repeat: int) -> Iterable[Row]:
    """Measure the processor time of both models, and how far results are from those of the packages."""
    python = peers.python("models")
    if python is None:
        raise Failed(f"the models are made with their packages. {peers.advice(['models'])}")
    path = made(python)
    _command(path, "static")()  # not counted: fills the cache of compiled code
    what = {"static": "static embeddings of 256 numbers", "onnx": "a classifier in ONNX, 2 layers of 128"}
    for kind, name in what.items():
        every = DOCUMENTS if kind == "static" else FEW
        counts = {"loop": SOME, "batch": every}
        sides = {"ours": _command(path, kind)}
        for way, count in counts.items():
            sides[way] = partial(child, python, "curation.peers.models", f"{kind}-{way}", path, count)
        used = rounds(min(repeat, 3), sides)
        rates = {side: [counts.get(side, every) / s for s in found["cpu_s"]] for side, found in used.items()}
        ours = np.load(path / "embeddings/static/0.jsonl.npy") if kind == "static" else _scores(path)
        for way, count in counts.items():
            apart = float(np.abs(ours[:count] - np.load(path / f"{kind}-{way}.npy")).max())
            if apart > TOLERANCE:
                raise Failed(f"results differ by up to {apart:.2g} from those of {kind}-{way}")
            label = "one by one" if way == "loop" else "in batches by hand"
            note = f"results differ by up to {apart:.1e}" + (f"; peer on {count:,}" if count < every else "")
            title = f"{name}, documents a processor second; peer: {label}"
            yield Row("models", title, "/s", rates["ours"], rates[way], 3 if way == "loop" else 1, note=note)


def _scores(path: Path) -> np.ndarray:
    with open(path / "few/attributes/m/0.jsonl") as rows:
        found = [json.loads(row)["attributes"] for row in rows]
    return np.array([[row[f"m__onnx__{label}"][0][2] for label in ("low", "middle", "high")] for row in found])


PARTS: dict[str, Callable[[int], Iterable[Row]]] = {"models": models}
