#!/usr/bin/env bash
# A Parquet file written with `write_page_checksum=True` and read with `page_checksum_verification=True` gives other
# values after some single flipped bits, without an error: checksums cover pages, and not the footer.
#
# A small file of texts, lists and numbers is read once for each of its bits, flipped.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1
"$work/venv/bin/python" - <<'PYTHON'
import pyarrow as pa
import pyarrow.parquet as pq

print("pyarrow", pa.__version__)
table = pa.table({"name": ["a", "a", "b", "c"], "ids": [[1, 2], [3], [], [4]], "reward": [0.5, 1.0, 0.25, 0.0]})
out = pa.BufferOutputStream()
pq.write_table(table, out, write_page_checksum=True, compression="zstd")
data = out.getvalue().to_pybytes()
footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
found = {"before the footer": [0, 0, 0], "in the footer": [0, 0, 0]}
other = []
for bit in range(8 * 4, 8 * (len(data) - 8)):
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    place = found["in the footer" if bit // 8 >= footer else "before the footer"]
    try:
        read = pq.ParquetFile(pa.BufferReader(bytes(flipped)), page_checksum_verification=True).read()
        same = read.to_pydict() == table.to_pydict()
    except Exception:
        place[0] += 1
        continue
    place[1 if same else 2] += 1
    if not same and read.num_rows == 4 and read.schema.names == table.schema.names:
        other.append(read.to_pydict())
for name, (refused, same, differs) in found.items():
    print(f"flips {name}: {refused} refused, {same} read as before, {differs} read as something else")
print(f"{len(other)} of these with the same names and number of rows, such as {other[0] if other else None}")
assert found["in the footer"][2] and other, "changed"
PYTHON
