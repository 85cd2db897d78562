#!/usr/bin/env bash
# pyarrow: a tensor of the type arrow.fixed_shape_tensor with a permutation has other elements than it should.
#
# The shape of the type is that of the stored elements, and the permutation names the stored axis of each axis of the
# result, as `numpy.transpose` takes it. `to_numpy` of a scalar has the right shape and wrong strides: elements repeat,
# and the last ones are never seen. `to_numpy_ndarray` of the array is right for two axes and wrong for three, so that
# the two disagree about the same value. No error, no warning. A square matrix hides the fault.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1 numpy==2.4.1
"$work/venv/bin/python" - <<'PYTHON'
import numpy as np
import pyarrow as pa

print(f"pyarrow {pa.__version__}")
seen = {}
for shape, order in (([2, 3], [1, 0]), ([2, 3, 4], [2, 0, 1]), ([2, 2], [1, 0])):
    size = int(np.prod(shape))
    kind = pa.fixed_shape_tensor(pa.int32(), shape, permutation=order)
    stored = pa.array([list(range(size))], pa.list_(pa.int32(), size))
    array = pa.ExtensionArray.from_storage(kind, stored)
    right = np.arange(size, dtype=np.int32).reshape(shape).transpose(order)
    scalar, whole = array[0].to_numpy(), array.to_numpy_ndarray()[0]
    seen[len(shape), size] = (np.array_equal(scalar, right), np.array_equal(whole, right))
    print(f"shape {shape}, permutation {order}: scalar {scalar.tolist()}, array {whole.tolist()}, right {right.tolist()}")
assert seen == {(2, 6): (False, True), (3, 24): (False, False), (2, 4): (True, True)}, seen
PYTHON
