#!/usr/bin/env bash
# Daft makes columns of pickled Python objects of Arrow types that it lacks, and writes the pickles to Parquet.
#
# `daft.from_arrow` takes text that is dictionary-encoded or a string view, and float16, without a word. Their type is then
# Python, filters still work on them, and `write_parquet` writes one pickle for each value: other readers get bytes that
# begin with 0x80. Plain text beside them stays text.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check daft==0.6.14 pyarrow==26.0.1 pandas==3.1.1
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import glob
import pickletools

import daft
import pyarrow as pa
import pyarrow.parquet as pq

texts = ["red", "blue", "red"]
columns = {
    "plain": pa.array(texts),
    "dictionary": pa.array(texts).dictionary_encode(),
    "view": pa.array(texts, pa.string_view()),
    "half": pa.array([1, 2, 3], pa.float16()),
}
frame = daft.from_arrow(pa.table(columns))
print(f"daft {daft.__version__}, from_arrow:", {field.name: str(field.dtype) for field in frame.schema()})
frame.where(frame["plain"] == "red").write_parquet("out")
written = pq.read_table(glob.glob("out/*.parquet")[0])
assert written["plain"].to_pylist() == ["red", "red"], "changed"
for name in ("dictionary", "view", "half"):
    value = written[name][0].as_py()
    print(f"  {name} in its Parquet file: {written.schema.field(name).type}, {value!r}")
    assert isinstance(value, bytes) and [step.name for step, *_ in pickletools.genops(value)][-1] == "STOP", "changed"
PYTHON
