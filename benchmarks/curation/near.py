"""Compare finding near-duplicates with rensa and datasketch, and measure recall and precision against brute force.

The corpus has 100,000 documents with planted near-copies. Its words are drawn from a Zipf distribution, 250 per
document in the median. Every fifth document is a copy of an earlier one in which words are replaced until the Jaccard
similarity is about 0.70, 0.75, ... 0.95. Brute force compares all pairs that share any shingle.
"""

from __future__ import annotations

import gzip
import json
import shutil
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from benchmarks import peers
from benchmarks.lib import corpus
from benchmarks.lib.measure import ROOT, Failed, Row, feedmill, run

DOCUMENTS, ADDED, FILES, WIDTH, THRESHOLD = 100_000, 10_000, 8, 5, 0.8
SOME = 20_000
"""Number of documents for the slower peer."""
LEVELS = (0.70, 0.75, 0.80, 0.85, 0.90, 0.95)
BOUND = 15.0


def documents() -> Path:
    """Return the folder of both dumps (``first/`` and ``second/``) and of the pairs of brute force, ``truth.npz``."""
    path = corpus.folder() / f"near_{DOCUMENTS}"
    if (path / ".complete").exists():
        return path
    shutil.rmtree(path, ignore_errors=True)
    texts = _texts(DOCUMENTS + ADDED)
    words = _vocabulary()
    for name, begin, end, files in (("first", 0, DOCUMENTS, FILES), ("second", DOCUMENTS, DOCUMENTS + ADDED, 1)):
        (path / name / "documents").mkdir(parents=True)
        for number, some in enumerate(np.array_split(np.arange(begin, end), files)):
            with gzip.open(path / name / "documents" / f"{number:02d}.jsonl.gz", "wt", compresslevel=6) as out:
                for i in some.tolist():
                    text = " ".join(words[word] for word in texts[i].tolist())
                    out.write(json.dumps({"id": str(i), "text": text.capitalize() + ".", "source": "made"}) + "\n")
    pairs, similarities = _brute_force(texts)
    np.savez(path / "truth.npz", pairs=pairs, similarities=similarities)
    (path / ".complete").touch()
    return path


def _vocabulary() -> list[str]:
    rng = np.random.default_rng(1)
    made: dict[str, None] = {}
    while len(made) < 50_000:
        made["".join(map(chr, rng.integers(97, 123, rng.integers(2, 10))))] = None
    return list(made)


def _texts(count: int) -> list[np.ndarray]:
    """Return the documents as arrays of word numbers."""
    rng = np.random.default_rng(2)
    weights = 1 / (np.arange(50_000) + 10.0)
    bounds = np.cumsum(weights / weights.sum())
    texts: list[np.ndarray] = []
    for number in range(count):
        if number % 5 == 4:
            text = texts[int(rng.integers(0, number))].copy()
            level = float(rng.choice(LEVELS))
            lost = len(text) * (1 - level) / (1 + level)  # shingles in only one of the two
            places = rng.choice(len(text), max(1, min(len(text), round(lost / WIDTH))), replace=False)
            text[places] = rng.integers(0, 50_000, len(places))
        else:
            size = int(np.clip(rng.lognormal(np.log(250), 0.6), 20, 3000))
            text = np.minimum(np.searchsorted(bounds, rng.random(size)), 49_999)
        texts.append(text)
    return texts


def _brute_force(texts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs with a similarity of at least 0.5, int64[n, 2], and their similarities, float64[n]."""
    rng = np.random.default_rng(3)
    codes = rng.integers(1, 2**63, (WIDTH, 50_000), np.uint64)
    sets = []
    for text in texts:
        parts = [codes[k][text[k : len(text) - WIDTH + 1 + k]] for k in range(WIDTH)]
        sets.append(np.unique(np.sum(parts, axis=0, dtype=np.uint64)))
    sizes = np.array([len(one) for one in sets])
    owners = np.repeat(np.arange(len(sets)), sizes)
    values = np.concatenate(sets)
    order = np.argsort(values, kind="stable")
    values, owners = values[order], owners[order]
    shared = []
    for step in range(1, len(texts)):  # a shingle that n documents have gives pairs at distances 1 to n - 1
        same = np.flatnonzero(values[step:] == values[:-step])
        if not len(same):
            break
        shared.append(owners[same] * len(texts) + owners[same + step])
    found, counts = np.unique(np.concatenate(shared), return_counts=True)
    i, j = np.divmod(found, len(texts))
    similarities = counts / (sizes[i] + sizes[j] - counts)
    chosen = similarities >= 0.5
    return np.stack([i, j], axis=1)[chosen], similarities[chosen]


def _kept(pairs: np.ndarray, count: int) -> np.ndarray:
    """Return which documents are kept, bool[n]: those without a kept document before them that is similar."""
    kept = np.ones(count, np.bool_)
    for before, after in pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))].tolist():
        kept[after] &= not kept[before]
    return kept


def _answers(path: Path, *dumps: str) -> tuple[np.ndarray, np.ndarray]:
    """Return which documents are kept, bool[n], and what covers each other one, int64[n]; its own number if kept."""
    covers = []
    for dump in dumps:
        for file in sorted((path / dump / "attributes/dup_near").glob("*.gz")):
            with gzip.open(file) as rows:
                for row in map(json.loads, rows):
                    found = row["attributes"]
                    covers.append(found["dup_near_cluster"][0][2] if found["dup_near"] else len(covers))
    return np.array(covers) == np.arange(len(covers)), np.array(covers)


def _clean(path: Path) -> None:
    for dump in ("first", "second"):
        shutil.rmtree(path / dump / "attributes", ignore_errors=True)
    shutil.rmtree(path / "signatures", ignore_errors=True)


def _command(path: Path, dump: str, processes: int) -> list[str]:
    options = ("--signatures", path / "signatures", "--workers", processes, "--json")
    return feedmill("dedupe", "--near", path / dump / "documents", *options)


def _warm(path: Path) -> None:
    for file in path.rglob("*.gz"):
        file.read_bytes()


def near(repeat: int) -> Iterable[Row]:
    """Measure the command, adding a tenth of the corpus, and both peers; then recall and precision."""
    path = documents()
    _clean(path)
    run(_command(path, "second", 1))  # not counted: fills the cache of compiled code
    wall: dict[str, list[float]] = {}
    processor: dict[str, list[float]] = {}
    for _ in range(repeat):
        _warm(path)
        for name, before, command in _runs(path):
            if before is not None:
                before(path)
            used = run(command, folder=ROOT)
            wall.setdefault(name, []).append(used["s"])
            processor.setdefault(name, []).append(used["cpu_s"])
    yield Row("near", f"{DOCUMENTS:,} documents, whole command, 2 processes", "s", wall["all 2"], bound=BOUND)
    rensa, datasketch = "the same on one; peer: rensa, one process", "documents on one; peer: datasketch"
    for kind, used in (("wall time", wall), ("processor time", processor)):
        yield Row("near", f"{rensa}, {kind}", "s", used["all 1"], used.get("rensa", []))
        if "datasketch" in used:
            rates = [DOCUMENTS / s for s in used["all 1"]], [SOME / s for s in used["datasketch"]]
            yield Row("near", f"{datasketch}, {kind}", "/s", *rates, note=f"peer on {SOME:,}")
    for kind, used in (("wall time", wall), ("processor time", processor)):
        share = statistics.median(used["added"]) / statistics.median(used["all 1"])
        note = f"{share:.2f} of that of the first {DOCUMENTS:,}"
        yield Row("near", f"adding {ADDED:,} documents, one process, {kind}", "s", used["added"], note=note)
    share = statistics.median(processor["added"]) - statistics.median(processor["nothing"])
    share /= statistics.median(processor["all 1"]) - statistics.median(processor["nothing"])
    note = "without what a run over one document takes"
    yield Row("near", "the same, processor time, share of the first run's", "%", [100 * share], note=note)
    yield from _quality(path)


def _runs(path: Path) -> Iterable[tuple[str, Callable[[Path], None] | None, list[str]]]:
    """Return name, preparation and command of each timed run."""
    yield "all 2", _clean, _command(path, "first", 2)
    yield "all 1", _clean, _command(path, "first", 1)
    yield "added", None, _command(path, "second", 1)
    yield "nothing", None, feedmill("dedupe", "--near", _tiny(path), "--workers", 1, "--json")
    for name, count in (("rensa", DOCUMENTS), ("datasketch", SOME)):
        if python := peers.python("minhash"):
            options = (name, path / "first/documents", count, THRESHOLD, WIDTH, path / f"{name}.json")
            yield name, None, [python, "-m", "benchmarks.curation.peers.minhash", *map(str, options)]


def _tiny(path: Path) -> Path:
    """Return a folder with one document."""
    shutil.rmtree(path / "tiny", ignore_errors=True)
    file = path / "tiny/documents/0.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text('{"id":"1","text":"one of a kind"}\n')
    return file.parent


def _quality(path: Path) -> Iterable[Row]:
    """Return recall by similarity, and precision, against brute force, for Feedmill and the peers."""
    with np.load(path / "truth.npz") as truth:
        pairs, similarities = truth["pairs"], truth["similarities"]
    kept, covers = _answers(path, "first", "second")
    count = len(kept)
    similar = pairs[similarities >= THRESHOLD]
    removed = np.flatnonzero(~kept)
    right = np.isin(covers[removed] * count + removed, similar[:, 0] * count + similar[:, 1])
    if wrong := int((~right | ~kept[covers[removed]]).sum()):
        raise Failed(f"{wrong} of {len(removed):,} removed documents are not similar to a kept one before them")
    wanted = ~_kept(similar[similar[:, 1] < DOCUMENTS], DOCUMENTS)
    share = 100 * float((~kept[:DOCUMENTS] & wanted).sum() / wanted.sum())
    counts = f"{int((~kept[:DOCUMENTS]).sum()):,} removed, {int(wanted.sum()):,} by brute force"
    yield Row(
        "near", "recall of duplicates", "%", [share], note=f"{share:.2f} %: {counts}; all with a similar kept one"
    )
    for low in (0.80, 0.85, 0.90, 0.95):
        chosen = (similarities >= low) & (similarities < low + 0.05)
        share = 100 * float((~kept[pairs[chosen]]).any(axis=1).mean())
        what = f"pairs of which at most one is kept, Jaccard {low:.2f} to {low + 0.05:.2f}"
        yield Row("near", what, "%", [share], note=f"{share:.2f} % of {chosen.sum():,} pairs")
    whole, new = ~_kept(similar, count), slice(DOCUMENTS, count)
    share = 100 * float((~kept[new] & whole[new]).sum() / whole[new].sum())
    yield Row("near", "recall of duplicates among the added", "%", [share], note=f"{share:.2f} %")
    for name in ("rensa", "datasketch"):
        if (path / f"{name}.json").exists() and peers.python("minhash"):
            flags = np.array(json.loads((path / f"{name}.json").read_text())["marked"], np.bool_)
            true = wanted[: len(flags)]
            hits = int((flags & true).sum())
            precision = f"precision {hits / max(1, flags.sum()):.4f}"
            note = f"{100 * hits / true.sum():.2f} %; {precision}: it does not compare what it finds"
            yield Row("near", f"{name}: recall of duplicates", "%", [100 * hits / true.sum()], note=note)


PARTS: dict[str, Callable[[int], Iterable[Row]]] = {"near": near}
