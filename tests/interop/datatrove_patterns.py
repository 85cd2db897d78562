"""Record which files datatrove reads for patterns: run in its environment, prints ``golden/nanosets/patterns.json``.

Each file has one sample of one token, its number in `FILES`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from itertools import product
from pathlib import Path

FILES = [
    "a.ds", "b1.ds", "b2.ds", "[c].ds", "d e.ds", ".h.ds", "sub/a.ds", "sub/b1.ds", "sub/deep/a.ds",
    "sub/deep/er/b1.ds", "other/a.ds", "other/x-1.ds", ".hidden/a.ds", "sub.ds/a.ds", "T/a.ds",
]  # fmt: skip
PATTERNS = [
    ".ds", "a.ds", "sub/a.ds", "/a.ds", "*.ds", "b?.ds", "b[12].ds", "b[!1].ds", "[[]c].ds", "sub/*.ds", "sub/**.ds",
    "*/*.ds", "*/a.ds", "**/*.ds", "**/a.ds", "**", "sub/**", "sub/**/*.ds", "*/**/*.ds", "*/deep/*.ds",
    "**/deep/**/*.ds", "nope/*.ds", "*.none", "s*/*.ds", "?ub/*.ds", "{a,b1}.ds", "{a,b1}*", "other/x-[0-9].ds",
    "other/x-[a-c-].ds", "T/*.ds", "[!a]*.ds", "*/", "**/", "sub", "sub/deep/er/*1.ds", "*/*/*.ds", ".*.ds",
    ".*/*.ds", "[", "*.d[s", "b[2-1].ds", "/*.ds", "sub//*.ds", "./*.ds", "",
]  # fmt: skip


def write(folder: Path) -> None:
    for number, name in enumerate(FILES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((number).to_bytes(2, "little") * 2)


def main() -> None:
    from datatrove.utils.dataset import DatatroveFolderDataset

    found = []
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        for pattern, recursive in product(PATTERNS, (True, False)):
            try:
                data = DatatroveFolderDataset(folder, 1, filename_pattern=pattern, recursive=recursive)
                got: object = [int(data[i]["input_ids"][0]) for i in range(len(data))]
            except Exception as error:
                got = type(error).__name__
            found.append([pattern, recursive, got])
    lines = ",\n".join(f"  {json.dumps(case)}" for case in found)
    sys.stdout.write(f'{{\n "datatrove": "{version("datatrove")}",\n "fsspec": "{version("fsspec")}",\n')
    sys.stdout.write(f' "files": {json.dumps(FILES)},\n "cases": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
