#!/usr/bin/env bash
# pyarrow: `type_codes` and `offsets` of a sliced union are those of the rows before the slice.
#
# A slice of a union has the right length and the right `to_pylist`, and `field` of a sparse one is sliced. But
# `type_codes`, and for dense unions `offsets`, begin at row 0 of the whole array. Code that reads a union by them,
# without a loop over scalars, takes each value from another row or with another type, without an error.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1
"$work/venv/bin/python" - <<'PYTHON'
import pyarrow as pa

print(f"pyarrow {pa.__version__}")
codes = pa.array([0, 0, 1, 1], pa.int8())
numbers, words = pa.array([1, 2, 3, 4]), pa.array(["a", "b", "c", "d"])
sparse = pa.UnionArray.from_sparse(codes, [numbers, words]).slice(2)
print("sparse:", sparse.to_pylist(), "type_codes", sparse.type_codes.to_pylist(), "expected [1, 1]")
assert sparse.to_pylist() == ["c", "d"] and sparse.type_codes.to_pylist() == [0, 0]
dense = pa.UnionArray.from_dense(codes, pa.array([0, 1, 0, 1], pa.int32()), [numbers, words]).slice(1, 2)
print("dense:", dense.to_pylist(), "type_codes", dense.type_codes.to_pylist(), "expected [0, 1];",
      "offsets", dense.offsets.to_pylist(), "expected [1, 0]")
assert dense.to_pylist() == [2, "a"]
assert dense.type_codes.to_pylist() == [0, 0] and dense.offsets.to_pylist() == [0, 1]
PYTHON
