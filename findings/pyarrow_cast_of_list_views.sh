#!/usr/bin/env bash
# Casting a `list_view` column to `list` loses the items of the last row, without an error.
#
# `pyarrow.array([[1], None, [2, 3], [4]], list_view).cast(list_)` gives [[1], None, [2, 3], []]: the result has one
# offset too few for its rows. Only `validate(full=True)` refuses it. Nulls make no difference.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1
"$work/venv/bin/python" - <<'PYTHON'
import pyarrow as pa

print("pyarrow", pa.__version__)
for rows in ([[1], None, [2, 3], [4]], [[1], [2, 3], [4]]):
    column = pa.array(rows, pa.list_view(pa.int32()))
    assert column.to_pylist() == rows
    cast = column.cast(pa.list_(pa.int32()))
    print(rows, "->", cast.to_pylist())
    try:
        cast.validate(full=True)
    except pa.ArrowInvalid as error:
        print("  validate(full=True):", error)
    else:
        raise AssertionError("changed: the result is valid")
    assert cast.type == pa.list_(pa.int32()) and cast.to_pylist() != rows, "changed"
PYTHON
