"""Modalities' side of the interop tests: reads requests as JSON from stdin, prints what it found as the last line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from modalities.dataloader.dataset import PackedMemMapDatasetBase, PackedMemMapDatasetContinuous
from modalities.dataloader.large_file_lines_reader import LargeFileLinesReader


def documents(path: str) -> list[list[int]]:
    data = PackedMemMapDatasetBase(Path(path), "x")
    return [data[i]["x"].tolist() for i in range(len(data))]


def windows(path: str, length: int) -> list[list[int]]:
    data = PackedMemMapDatasetContinuous(Path(path), "x", block_size=length + 1, reuse_last_target=True)
    return [data[i]["x"].tolist() for i in range(len(data))]


def lines(path: str, index: str) -> list[str]:
    return list(LargeFileLinesReader(Path(path), Path(index), encoding="utf-8"))


FUNCTIONS: dict[str, Any] = {"documents": documents, "windows": windows, "lines": lines}
answers = [FUNCTIONS[name](*arguments) for name, *arguments in json.load(sys.stdin)]
sys.stdout.write("\n" + json.dumps(answers) + "\n")
