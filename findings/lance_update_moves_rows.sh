#!/usr/bin/env bash
# An update of one row of a Lance table moves it to the end: all rows after it have other numbers, also for `take`.
#
# An order of training that was written as row numbers then reads other rows, without an error. The row ids that the table
# can keep ("stable row ids") stay, numbers do not.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pylance==14.0.2 pyarrow==26.0.1
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import lance
import pyarrow as pa

frames = pa.table({"frame": range(6), "task": ["pick"] * 6})
for stable in (False, True):
    name = f"stable_{stable}.lance"
    table = lance.write_dataset(frames, name, enable_stable_row_ids=stable)
    table.update({"task": "'place'"}, where="frame = 1")
    table = lance.dataset(name)
    order, taken = table.to_table()["frame"].to_pylist(), table.take([1, 5])["frame"].to_pylist()
    print(f"pylance {lance.__version__}, stable row ids {stable}: rows are frames {order}; take([1, 5]) gives {taken}")
    assert order == [0, 2, 3, 4, 5, 1] and taken == [2, 1], "changed"
PYTHON
