#!/usr/bin/env bash
# Saving the same tensors with the same metadata as safetensors gives other bytes each time, also in one process.
#
# Tensors are sorted, the names of the metadata are in the order of a hash table with a random seed. So files that are
# compared or stored by their hash, as shards of embeddings and checkpoints, differ from each run that made them, from two
# names on. With one name, or none, the bytes are the same.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check safetensors==0.8.0 numpy==2.4.6
"$work/venv/bin/python" - <<'PYTHON'
import hashlib
from importlib.metadata import version

import numpy as np
from safetensors.numpy import load, save

tensors = {name: np.arange(4, dtype=np.float32) for name in ("b", "a", "c")}
print("safetensors", version("safetensors"))
for count in (0, 1, 2, 8):
    metadata = {f"name{number}": "value" for number in range(count)}
    files = [save(tensors, metadata=metadata or None) for _ in range(64)]
    digests = {hashlib.sha256(file).hexdigest() for file in files}
    bodies = {file[8 + int.from_bytes(file[:8], "little") :] for file in files}
    print(f"  metadata of {count} names, saved 64 times: {len(digests)} different files, {len(bodies)} body")
    assert (len(digests) > 1) == (count > 1) and len(bodies) == 1, "changed"
    assert all(load(file).keys() == tensors.keys() for file in files)
PYTHON
