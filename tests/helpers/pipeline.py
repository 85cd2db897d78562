"""A pipeline from documents to tokens, as a file of steps in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers.document_folders import texts, write_documents
from helpers.engine_verbs import TOKENIZER
from helpers.kills import contents

STREAM = {
    "name": "web",
    "documents": ["documents/*"],
    "attributes": ["lengths", "copies"],
    "filter": {
        "include": ["$.attributes[?(@.lengths__char_length_v1__length[0][2] >= 20)]"],
        "exclude": ["$.attributes[?(@.copies[0][2] == 1)]"],
    },
    "output": {"path": "kept", "max_size_in_bytes": 700},
}
STEPS: list[dict[str, Any]] = [
    {
        "name": "lengths",
        "verb": "tag",
        "inputs": ["documents"],
        "outputs": ["attributes/lengths"],
        "options": {"taggers": ["char_length_v1"], "name": "lengths"},
    },
    {
        "name": "copies",
        "verb": "dedupe",
        "inputs": "documents",
        "outputs": "attributes/copies",
        "options": {"name": "copies"},
    },
    {
        "name": "kept",
        "verb": "filter",
        "inputs": ["documents", "attributes/lengths", "attributes/copies"],
        "outputs": ["kept"],
        "options": {"inputs": {"streams": [STREAM]}},
    },
    {
        "name": "tokens",
        "verb": "tokenize",
        "inputs": ["kept"],
        "outputs": ["tokens/web"],
        "options": {"tokenizer": TOKENIZER},
    },
    {"verb": "merge", "inputs": ["tokens/web.pbin", "tokens/web.pbin"], "outputs": ["twice.pbin"]},
]


def make(folder: Path) -> None:
    write_documents(folder, *[texts(30 + 10 * n, seed=n) for n in range(4)])
    write(STEPS, folder)


def write(steps: list[dict[str, Any]], folder: Path) -> None:
    (folder / "p.json").write_text(json.dumps({"steps": steps}))


def without_manifests(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(folder, leave_out=("p.run",)).items() if ".feedmill." not in name}
