"""Run the configurations of Dolma's repository with Dolma and with Feedmill, and compare the rows.

    FEEDMILL_DOLMA_PYTHON=dolma-venv/bin/python python tests/interop/dolma_configs.py DOLMA

All paths become local, with random documents, and attributes under the names that the rules use, with scores around
their limits. Bloom filters get a size for these documents (Dolma's results with a filter that is too small are random),
and one process. ``tokens`` uses the tokenizer of GPT-NeoX in Dolma's tests, and documents are compared in any order, as
Dolma draws a new one in each run; ``tag`` leaves out the taggers that download a model. Prints one line per
configuration that differs or is refused, and the counts per verb. ``dolma_reshard.py`` has those of resharding.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from backports import zstd

DOLMA = """
import json, sys
from dolma.cli.__main__ import main
for line in sys.stdin:
    try:
        main(json.loads(line)); print("##ok", flush=True)
    except BaseException as error:
        print("##error", type(error).__name__, " ".join(str(error).split())[:300], flush=True)
"""
KEYS = re.compile(r"@\.(\w+)|\.attributes\??\.(\w+)|\.attributes\??\.\"([^\"]+)\"")
LIMITS = re.compile(r"[<>]=?\s*(-?\d+(?:\.\d+)?)")
TOKENIZER = ""
WORDS = "the of and a to in is was he for it with as his on be at by had 12 data train mill grain".split()  # noqa: SIM905


def strings(tree: Any) -> Iterator[str]:
    """Yield all strings of a tree."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict | list):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from strings(item)


def packed(path: Path, data: bytes) -> bytes:
    """Return data compressed as a file's name says."""
    kinds = {".gz": gzip.compress, ".zst": zstd.compress, ".zstd": zstd.compress}
    return kinds.get(path.suffix, bytes)(data)


def unpacked(data: bytes) -> bytes:
    """Return data without its compression."""
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    return zstd.decompress(data) if data[:4] == b"\x28\xb5\x2f\xfd" else data


class Local:
    """A configuration with its data below a folder of its own."""

    def __init__(self, config: dict[str, Any], root: Path, seed: int) -> None:
        self.root, self.chance = root, random.Random(seed)
        self.outputs: list[Path] = []
        made = {"mix": self._mix, "dedupe": self._dedupe, "tag": self._tag, "tokens": self._tokens}
        self.verb = verb_of(config)
        self.config = made[self.verb](config)
        self.config["processes"] = 1
        self.config["work_dir"] = {"input": str(root / "work/in"), "output": str(root / "work/out")}

    def _place(self, path: str) -> Path:
        return self.root / "data" / re.sub(r"^[\w+]+://|^[~/]+|\$\{[^}]*\}/?", "", path)

    def _documents(self, pattern: str) -> tuple[str, list[Path]]:
        """Write two files that a pattern matches, and return the local pattern and the files."""
        local = str(self._place(pattern))
        if local.endswith("/"):
            local += "*.json.gz"
        files = []
        if not re.search(r"[*?]|\.\w+$", local):
            local += "/*.json.gz"
        for number in "01" if "*" in local or "?" in local else "0":
            name = local.replace("/doc*/", "/documents/").replace("**", "x").replace("*", number).replace("?", number)
            path = Path(re.sub(r"\[(.).*?\]", r"\1", name))
            path = path if "." in path.name else path.with_name(path.name + ".json.gz")
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                rows = [self._row(f"{path.name}-{k}") for k in range(25)]
                data = "".join(json.dumps(row) + "\n" for row in rows).encode()
                path.write_bytes(packed(path, data))
            files.append(path)
        return local, files

    def _row(self, name: str) -> dict[str, Any]:
        lines = [" ".join(self.chance.choices(WORDS, k=self.chance.randrange(9))) for _ in range(6)]
        url = f"https://example.org/{self.chance.randrange(20)}"
        times = {"added": "2023-01-01T00:00:00.000Z", "created": "2023-01-01T00:00:00.000Z"}
        more = {"url": url, "title": lines[0], "length": len(lines[1]), "html": lines[2]}
        return {"id": name, "text": "\n".join(lines), "source": "s", **times, "metadata": more, "url": url}

    def _mix(self, config: dict[str, Any]) -> dict[str, Any]:
        for stream in config["streams"]:
            pairs = [self._documents(pattern) for pattern in stream["documents"]]
            stream["documents"] = [pattern for pattern, _ in pairs]
            rules = "\n".join(strings([stream.get("filter"), stream.get("span_replacement")]))
            keys = sorted({key for found in KEYS.findall(rules) for key in found if key})
            limits = sorted({float(limit) for limit in LIMITS.findall(rules)}) or [0.5]
            for path in {path for _, files in pairs for path in files}:
                for number, name in enumerate(stream.get("attributes") or []):
                    self._attributes(path, name, keys if number == 0 else [], limits)
            output = self._place(stream["output"]["path"].rstrip("/") + "-out")
            stream["output"]["path"] = str(output)
            self.outputs.append(output)
        return config

    def _attributes(self, path: Path, name: str, keys: list[str], limits: list[float]) -> None:
        target = Path(str(path).replace("/documents/", f"/attributes/{name}/", 1))
        target.parent.mkdir(parents=True, exist_ok=True)
        rows = []
        for line in unpacked(path.read_bytes()).splitlines():
            row = json.loads(line)
            spans = {key: self._spans(len(row["text"]), limits) for key in keys}
            rows.append(json.dumps({"id": row["id"], "attributes": spans, "source": "s"}))
        target.write_bytes(packed(path, "".join(row + "\n" for row in rows).encode()))

    def _spans(self, length: int, limits: list[float]) -> list[Any]:
        ends = sorted(self.chance.sample(range(length + 1), min(length + 1, 2 * self.chance.choice([1, 1, 2]))))
        near = [limit + step for limit in limits for step in (-0.25, 0, 0.25)]
        return [[a, b, self.chance.choice(near)] for a, b in zip(ends[::2], ends[1::2], strict=False) if a < b]

    def _dedupe(self, config: dict[str, Any]) -> dict[str, Any]:
        pairs = [self._documents(pattern) for pattern in config["documents"]]
        config["documents"] = [pattern for pattern, _ in pairs]
        unit = config["dedupe"].get("documents") or config["dedupe"].get("paragraphs") or {}
        name = config["dedupe"].get("name") or unit.get("attribute_name") or "none"
        folder = config["dedupe"].get("document_dir", "documents")
        parents = {path.parent for _, files in pairs for path in files if f"/{folder}/" in str(path)}
        self.outputs = [Path(f"{p}/".replace(f"/{folder}/", f"/attributes/{name}/", 1)) for p in parents]
        size = {"estimated_doc_count": 20_000, "desired_false_positive_rate": 1e-6}
        place = str(self.root / "filter.bin")
        config["bloom_filter"] = {
            "read_only": False,
            **config["bloom_filter"],
            "size_in_bytes": 0,
            **size,
            "file": place,
        }
        return config

    def _tag(self, config: dict[str, Any]) -> dict[str, Any]:
        pairs = [self._documents(pattern) for pattern in config["documents"]]
        config["documents"] = [pattern for pattern, _ in pairs]
        config["taggers"] = [name for name in config["taggers"] if not name.startswith(("ft_", "tokenizer_"))]
        parents = {path.parent for _, files in pairs for path in files}
        self.outputs = [
            Path(f"{p}/".replace("/documents/", f"/attributes/{name}/", 1))
            for p in parents
            for name in config["taggers"]
        ]
        return config

    def _tokens(self, config: dict[str, Any]) -> dict[str, Any]:
        config["documents"] = [self._documents(pattern)[0] for pattern in config["documents"]]
        self.outputs = [self._place(config["destination"])]
        more = {"tokenizer": {"segment_before_tokenization": False}, **config, "max_size": 3000, "dtype": "uint16"}
        more["tokenizer"] = {**more["tokenizer"], "name_or_path": TOKENIZER, "eos_token_id": 50279, "pad_token_id": 1}
        more.pop("tokenizer_name_or_path", None)
        return {**more, "destination": str(self.outputs[0])}

    def _token_rows(self) -> list[Any]:
        """Return id, source, place and tokens of all documents, sorted."""
        found = []
        for path in self.outputs[0].glob("*.npy"):
            tokens = np.fromfile(path, "<u2")
            with gzip.open(path.with_suffix("").with_suffix(".csv.gz"), "rt", newline="") as file:
                found += [(*rest, tokens[int(a) : int(b)].tolist()) for a, b, *rest in csv.reader(file)]
        return sorted(found)

    def rows(self) -> list[tuple[str, list[Any]]]:
        """Return the decompressed rows of each output file."""
        if self.verb == "tokens":
            return [("tokens", self._token_rows())]
        found = {}
        for folder in self.outputs:
            for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
                if path.is_file() and "/." not in str(path.relative_to(self.root)) and path.name[0] != ".":
                    found[str(path)] = [json.loads(line) for line in unpacked(path.read_bytes()).splitlines()]
        return sorted((path, rows) for path, rows in found.items() if rows)

    def clear(self) -> None:
        """Remove the outputs, the Bloom filter and the work folders."""
        for folder in (*self.outputs, *(output.parent / ".feedmill" for output in self.outputs), self.root / "work"):
            shutil.rmtree(folder, ignore_errors=True)
        (self.root / "filter.bin").unlink(missing_ok=True)


def verb_of(config: dict[str, Any]) -> str:
    """Return the command that a configuration is of."""
    kinds = {"streams": "mix", "dedupe": "dedupe", "taggers": "tag"}
    return next((verb for key, verb in kinds.items() if key in config), "tokens")


def configurations(repository: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Yield the verb, path and content of each configuration."""
    for folder in ("configs", "docs", "tests/config"):
        for path in sorted((repository / folder).rglob("*")):
            if path.suffix in (".json", ".yaml", ".yml") and "resharding" not in str(path):
                config = yaml.safe_load(path.read_text())
                yield verb_of(config), path, config


def main(repository: str) -> int:
    """Compare all configurations, and return the number of differences."""
    from feedmill.compat.dolma.cli.__main__ import main as ours
    from feedmill.errors import FeedmillError

    global TOKENIZER
    TOKENIZER = str(Path(repository).resolve() / "tests/data/tokenizer/gpt-neo-test-tokenizer.json")
    rows = 0
    counts: Counter[tuple[str, str]] = Counter()
    os.environ.setdefault("ALPHA", "0.5")  # of a configuration
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    environment.pop("PYTHONPATH", None)
    command = [os.environ["FEEDMILL_DOLMA_PYTHON"], "-c", DOLMA]
    with (
        tempfile.TemporaryDirectory() as work,
        subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-3, text=True, env=environment) as peer,
    ):
        assert peer.stdin is not None and peer.stdout is not None
        for number, (verb, path, config) in enumerate(configurations(Path(repository))):
            local = Local(config, Path(work) / str(number), number)
            file = local.root / "config.json"
            file.write_text(json.dumps(local.config))
            words = ["-c", str(file), verb]
            peer.stdin.write(json.dumps(words) + "\n")
            peer.stdin.flush()
            answer = next(line for line in peer.stdout if line.startswith("##"))
            theirs = local.rows() if answer == "##ok\n" else None
            local.clear()
            try:
                ours([*words, *(["--allow_missing"] if verb == "mix" else [])])
                found, why = local.rows(), ""
            except FeedmillError as error:
                found, why = None, str(error)
            same = "equal" if found == theirs else "differ"
            rows += sum(len(table) for _, table in found or [])
            if found is theirs is None:
                print(f"##refused by both: {verb} {path}: {answer.strip()} | {why[:300]}")
            counts[verb, same if found is not None or theirs is not None else "refused by both"] += 1
            if same == "differ":
                print(f"##differs: {verb} {path}: {answer.strip()} | {why[:300]} {_difference(found, theirs)}")
            shutil.rmtree(local.root)
        peer.stdin.close()
    print(f"## {rows:,} rows of Feedmill's were compared")
    print("##", {f"{verb} {what}": count for (verb, what), count in sorted(counts.items())})
    return sum(count for (_, what), count in counts.items() if what == "differ")


def _difference(ours: Any, theirs: Any) -> str:
    if ours is None or theirs is None:
        return ""
    if [path for path, _ in ours] != [path for path, _ in theirs]:
        return f"files {[p[-60:] for p, _ in ours][:3]} {[p[-60:] for p, _ in theirs][:3]}"
    for (path, a), (_, b) in zip(ours, theirs, strict=True):
        if a != b:
            row = next((f"{str(x)[:200]} // {str(y)[:200]}" for x, y in zip(a, b, strict=False) if x != y), "")
            return f"{path[-60:]}: {len(a)} rows, {len(b)} rows {row}"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) > 0)
