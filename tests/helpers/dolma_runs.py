"""The golden runs of Dolma 1.2.1 (tests/golden/dolma): a scratch copy of what they start from, and comparing."""

import gzip
import hashlib
import json
import os
import shutil
from pathlib import Path

from backports import zstd

GOLDEN = Path(__file__).parents[1] / "golden/dolma"
MANIFEST = json.loads((GOLDEN / "expected.json").read_text())
_OF_OTHERS = ("mixed", "tag", "tokens", "warc", "stat")  # what runs write, and what other commands read
RUNS = {run["name"]: run for run in MANIFEST["runs"]}


def names(*prefixes):
    return [name for name in RUNS if name.startswith(prefixes)]


def unpacked(path):
    data = Path(path).read_bytes()
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    return zstd.decompress(data) if data[:4] == b"\x28\xb5\x2f\xfd" else data


def kind(path):
    head = Path(path).read_bytes()[:4]
    return "gz" if head[:2] == b"\x1f\x8b" else "zst" if head == b"\x28\xb5\x2f\xfd" else "plain"


def begin(name, folder):
    """What runs of `dedupe` and `mix` read, in `folder`, but not what the run itself writes; the run's argv."""
    run = RUNS[name]
    shutil.copytree(GOLDEN, folder, ignore=shutil.ignore_patterns(*_OF_OTHERS), dirs_exist_ok=True)
    for output in run["outputs"]:
        (Path(folder) / output["path"]).unlink(missing_ok=True)
    for before in run.get("before", []):
        target = Path(folder) / before["to"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(unpacked(Path(folder) / before["copy_gunzipped"]))
    return run["argv"][1:]


def differences(name, folder):
    """What is not as Dolma wrote it; the first different line of each file."""
    found = []
    for output in RUNS[name]["outputs"]:
        path = Path(folder) / output["path"]
        if output.get("left_over_tmp"):
            continue
        if not path.exists():
            found.append(f"{output['path']} is missing")
            continue
        if output["compare"] == "lines" and kind(path) != output["container"]:
            found.append(f"{output['path']} is {kind(path)}, not {output['container']}")
        data = unpacked(path)
        if hashlib.sha256(data).hexdigest() != output["sha256"]:
            found.append(_first(GOLDEN / output["path"], data, output["path"]))
    return found


def _first(golden, data, name):
    if not os.path.exists(golden):
        return f"{name} differs"
    pairs = zip(unpacked(golden).split(b"\n"), data.split(b"\n"), strict=False)
    line = next(((n, a[:300], b[:300]) for n, (a, b) in enumerate(pairs, 1) if a != b), "its length")
    return f"{name} differs in {line}"
