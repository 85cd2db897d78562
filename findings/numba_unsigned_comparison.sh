#!/usr/bin/env bash
# numba compares an unsigned with a signed number of 64 bits as doubles: different numbers are equal above 2^53.
#
# NumPy 2 compares the same two scalars and arrays exactly. So a loop over offsets, hashes or ids that mixes the two types
# takes another branch when it is compiled, without a warning. Arithmetic of the two is another matter: numba gives int64.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check numba==0.68.1 numpy==2.4.6
"$work/venv/bin/python" - <<'PYTHON'
import sys

import numba
import numpy as np

unsigned, signed = np.array([2**60 + 1], np.uint64), np.array([2**60], np.int64)


def compared(a, b):
    return a[0] == b[0], a[0] > b[0]


plain, compiled = compared(unsigned, signed), numba.njit(compared)(unsigned, signed)
print(f"numba {numba.__version__}, numpy {np.__version__}: 2^60 + 1 (uint64) and 2^60 (int64)")
print(f"  numpy: equal {bool(plain[0])}, greater {bool(plain[1])}")
print(f"  numba: equal {bool(compiled[0])}, greater {bool(compiled[1])}")
expected = plain == (False, True) and compiled == (True, False)
sys.exit(0 if expected else 1)
PYTHON
