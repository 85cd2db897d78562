#!/usr/bin/env bash
# Lance: a table whose column has a dot in its name cannot be written.
#
# LeRobot's features have such names (observation.state, observation.images.top), in Parquet columns of those names. A table
# made of them is refused by name, where Parquet, Arrow files and Polars take it: writers for Lance must rename the columns,
# and each does it in its own way (observation_state, a struct). Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pylance==14.0.2 pyarrow==26.0.1
cat > "$work/a.py" <<'P'
import sys
import lance
import pyarrow as pa
import pyarrow.parquet as pq

folder = sys.argv[1]
dotted = pa.table({"observation.state": [1.0, 2.0]})
pq.write_table(dotted, f"{folder}/a.parquet")
print("Parquet:", pq.read_table(f"{folder}/a.parquet").schema.names)
try:
    lance.write_dataset(dotted, f"{folder}/a.lance")
    refused = False
except OSError as error:
    refused = "cannot contain `.`" in str(error)
    print("Lance:", str(error).split(", /")[0])
plain = lance.write_dataset(dotted.rename_columns(["observation_state"]), f"{folder}/b.lance")
print("Lance:", plain.schema.names)
sys.exit(0 if refused else 1)
P
echo "pylance 14.0.2, pyarrow 26.0.1: a column with a dot in its name"
"$work/venv/bin/python" "$work/a.py" "$work"
