#!/usr/bin/env bash
# Hugging Face datasets reads a file twice that two patterns of a dataset card match, without a word.
#
# A split whose pattern matches nothing is an error, but an empty split in streaming; if the first configuration of the
# card has such a split, no other can be loaded either.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0
cd "$work"
HF_HOME="$work/home" HF_HUB_OFFLINE=1 "$work/venv/bin/python" - <<'PYTHON'
import pathlib

import datasets

datasets.disable_progress_bars()


def card(name, *configs):
    """Write a folder of two files of one row with this card."""
    folder = pathlib.Path(name)
    (folder / "web").mkdir(parents=True)
    for n in range(2):
        (folder / f"web/{n}.jsonl").write_text('{"id": %d}\n' % n)
    (folder / "README.md").write_text("---\nconfigs:\n" + "\n".join(f"- {config}" for config in configs) + "\n---\n")
    return name


def ids(name, config, **options):
    """Return the ids of each split, or the error."""
    try:
        loaded = datasets.load_dataset(name, config, **options)
        return {split: [row["id"] for row in rows] for split, rows in loaded.items()}
    except Exception as error:
        return type(error).__name__


whole = '{config_name: whole, data_files: ["web/*.jsonl", "web/0.jsonl"]}'
parts = '{config_name: parts, data_files: [{split: train, path: "web/*"}, {split: test, path: "test/*"}]}'
first = card("first", whole, parts)
twice = ids(first, "whole")
stored, streamed = ids(first, "parts"), ids(first, "parts", streaming=True)
other = card("other", parts, whole)
refused = ids(other, "whole")
print(f"datasets {datasets.__version__}: patterns that overlap: {twice}")
print(f"  a split without files: {stored}; streaming: {streamed}; its card lists that configuration first: {refused}")
assert twice == {"train": [0, 1, 0]}, "changed"
assert (stored, streamed) == ("ValueError", {"train": [0, 1], "test": []}), "changed"
assert refused == "ValueError", "changed"
PYTHON
