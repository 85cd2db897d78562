"""Run a data provider of a training program on Feedmill and on Energon itself, and compare the samples as sets.

The order differs by design, so that the content of each sample is compared by its key. Each product runs in a process
of its own, because both have the name `megatron.energon`.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import types
from typing import Any

FEEDMILL, ENERGON = "feedmill", "energon"
MEMORY = 16 << 30
"""Bytes of address space that one process may have, most of which PyTorch's libraries take."""


def stand_in(name: str, **members: Any) -> None:
    """Create a module with members, and its packages."""
    parent, _, last = name.rpartition(".")
    if parent and parent not in sys.modules:
        stand_in(parent)
    module = types.ModuleType(name)
    module.__path__ = []  # type: ignore[attr-defined]
    vars(module).update(members)
    sys.modules[name] = module
    if parent:
        setattr(sys.modules[parent], last, module)


def use(product: str) -> None:
    """Make `megatron.energon` importable: the face of Feedmill, or the installed Energon."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    if product == FEEDMILL:
        from energon_tests import Aliases

        sys.meta_path.insert(0, Aliases())
    import megatron.energon  # type: ignore[import-not-found]

    if product == ENERGON:
        assert "feedmill" not in megatron.energon.__file__, megatron.energon.__file__


def digest(*values: Any) -> str:
    """Return a hash of tensors, with their types and shapes, and of other values by their text."""
    found = hashlib.sha256()
    for value in values:
        if hasattr(value, "numpy"):
            found.update(f"{value.dtype} {tuple(value.shape)}".encode() + value.contiguous().numpy().tobytes())
        else:
            found.update(repr(value).encode())
    return found.hexdigest()


def collect(seen: dict[str, str], samples: dict[str, str]) -> None:
    """Add the digests of samples by key. A key that was seen must have the same content."""
    for key, content in samples.items():
        assert seen.setdefault(key, content) == content, f"the sample {key} has changed"


def run_one(script: str, product: str, *arguments: str) -> dict[str, Any]:
    """Run a script with ``--product`` in a process of its own. Returns the JSON of the last line of its output."""
    command = [sys.executable, script, *arguments, "--product", product]
    # Energon's states are pickles with classes, which torch.load refuses by default; Feedmill's are plain data.
    environment = {**os.environ, **({"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"} if product == ENERGON else {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{product}: exit status {done.returncode}\n{done.stderr[-4000:]}"
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def compare(ours: dict[str, str], theirs: dict[str, str], what: str, expected: int) -> None:
    """Assert that two sets of samples are equal and complete, and print how many they are."""
    assert set(ours) == set(theirs), (what, sorted(set(ours) ^ set(theirs)))
    different = [key for key in ours if ours[key] != theirs[key]]
    assert not different, (what, different)
    assert len(ours) == expected, (what, len(ours), expected)
    print(f"{what}: {len(ours)} of {expected} samples, all equal to Energon's")
