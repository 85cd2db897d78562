"""Documents with planted near-copies, and what brute force says of them."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from feedmill.kernels.hashing.shingles import characters
from oracles.shingles import shingles


def make_texts(count: int, seed: int, copies: float = 0.4, words: tuple[int, int] = (3, 60)) -> list[str]:
    """Texts of random words; some of them are earlier ones with a few words changed, some the same in other case."""
    rng = random.Random(seed)
    texts: list[list[str]] = []
    for _ in range(count):
        if texts and rng.random() < copies:
            text = list(rng.choice(texts))
            for _ in range(rng.choice((0, 0, 1, 2, 5))):
                text[rng.randrange(len(text))] = f"w{rng.randrange(5000)}"
            if rng.random() < 0.2:
                text = [word.upper() + "," for word in text]
        else:
            text = [f"w{rng.randrange(5000)}" for _ in range(rng.randint(*words))]
        texts.append(text)
    return [" ".join(text) for text in texts]


def make_chains(count: int, seed: int) -> list[str]:
    """Texts of 60 words in chains of versions: each changes up to three words of the last; in random order."""
    rng, texts = random.Random(seed), list[str]()
    while len(texts) < count:
        text = [f"w{rng.randrange(5000)}" for _ in range(60)]
        for _ in range(20):
            for _ in range(rng.choice((0, 0, 1, 2, 3))):
                text[rng.randrange(60)] = f"w{rng.randrange(5000)}"
            texts.append(" ".join(text))
    rng.shuffle(texts)
    return texts[:count]


def make_shapes(count: int, seed: int) -> list[str]:
    """Texts of 60 words in chains, stars and cliques of 2 to 40, and texts that are like no other; in random order.

    In a chain each text has one word of the last one changed, so its ends are not alike. A star has texts that are like
    their center and not like one another. In a clique all are alike.
    """
    rng, texts = random.Random(seed), list[list[str]]()

    def word() -> str:
        return f"w{rng.randrange(50_000)}"

    while len(texts) < count:
        shape, size = rng.choice(("chain", "star", "clique", "alone")), rng.randint(2, 40)
        text = center = [word() for _ in range(60)]
        if shape == "alone":
            size = 1
        for number in range(size):
            if shape == "chain":
                text = list(text)
                text[rng.randrange(60)] = word()
            elif shape == "star" and number:
                text = list(center)
                text[(7 * number) % 60] = word()
            elif shape == "clique":
                text = [*center[:59], word()]
            texts.append(text)
    rng.shuffle(texts)
    return [" ".join(text) for text in texts[:count]]


def write_documents(root: Path, files: dict[str, Iterable[str]]) -> None:
    """Files of documents; their ids are ``<file>/<line>``."""
    for name, texts in files.items():
        path = root / "documents" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        stem = name.partition(".")[0]
        lines = (json.dumps({"id": f"{stem}/{n}", "text": text, "source": "s"}) for n, text in enumerate(texts, 1))
        data = "".join(line + "\n" for line in lines).encode()
        path.write_bytes(gzip.compress(data, 1, mtime=0) if name.endswith(".gz") else data)


def read_attributes(root: Path, name: str = "dup_near") -> dict[str, dict[str, Any]]:
    """The attribute rows of all files, by id, in the order of the files."""
    rows = {}
    for path in sorted((root / "attributes" / name).rglob("*.jsonl*")):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for line in data.splitlines():
            row = json.loads(line)
            rows[row["id"]] = row
    return rows


def marked(root: Path, name: str = "dup_near") -> list[str]:
    """The ids of the documents that are marked."""
    return [key for key, row in read_attributes(root, name).items() if row["attributes"][name]]


def clusters(root: Path, name: str = "dup_near") -> dict[int, list[str]]:
    """The ids of the documents of each cluster."""
    found: dict[int, list[str]] = {}
    for key, row in read_attributes(root, name).items():
        for span in row["attributes"].get(f"{name}_cluster", []):
            found.setdefault(span[2], []).append(key)
    return found


def brute_force(texts: list[str], threshold: float, width: int = 5) -> dict[int, list[int]]:
    """Connected components of all pairs that are similar enough, by their first members; those of one are left out."""
    table = characters()
    sets = [set(shingles(text, width, table)) for text in texts]
    heads = list(range(len(texts)))

    def head(i: int) -> int:
        while heads[i] != i:
            i = heads[i]
        return i

    for j in range(len(texts)):
        for i in range(j):
            union = len(sets[i] | sets[j])
            if union and len(sets[i] & sets[j]) / union >= threshold:
                a, b = sorted((head(i), head(j)))
                heads[b] = a
    found: dict[int, list[int]] = {}
    for i in range(len(texts)):
        found.setdefault(head(i), []).append(i)
    return {first: members for first, members in found.items() if len(members) > 1}


def covered(texts: list[str], threshold: float, order: list[int] | None = None, width: int = 5) -> dict[int, int]:
    """The witness of each removed document: the first kept one before it that is similar, in this order."""
    table = characters()
    sizes, having, witness = list[int](), dict[Any, list[int]](), dict[int, int]()
    order = list(order or range(len(texts)))
    for place, j in enumerate(order):
        own = set(shingles(texts[j], width, table))
        sizes.append(len(own))
        shared = Counter(kept for one in own for kept in having.get(one, ()))
        like = [kept for kept, same in shared.items() if same / (sizes[kept] + len(own) - same) >= threshold]
        if like:
            witness[j] = order[min(like)]
        else:
            for one in own:
                having.setdefault(one, []).append(place)
    return witness
