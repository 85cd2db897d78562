#!/usr/bin/env bash
# mcap reads no file that is opened without a buffer.
#
# `make_reader` reads from the open file that it is given. A raw file (`open(..., buffering=0)`, or an `io.RawIOBase`
# over a bucket) is wrapped in a buffer of the reader's own for a moment; when that is collected it closes the file,
# and `get_summary` fails with a closed file. A buffered file works.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check mcap==1.6.0
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
from mcap.reader import make_reader
from mcap.writer import Writer

with open("a.mcap", "wb") as file:
    writer = Writer(file)
    writer.start()
    schema = writer.register_schema(name="s", encoding="jsonschema", data=b"{}")
    channel = writer.register_channel(topic="/t", message_encoding="json", schema_id=schema)
    for number in range(10):
        writer.add_message(channel, log_time=number, data=b"{}", publish_time=number)
    writer.finish()
seen = {}
for name, options in {"buffered": {}, "raw": {"buffering": 0}}.items():
    try:
        seen[name] = make_reader(open("a.mcap", "rb", **options)).get_summary().statistics.message_count
    except ValueError as error:
        seen[name] = f"ValueError: {error}"
    print(f"{name}: {seen[name]}")
assert seen["buffered"] == 10 and "closed file" in str(seen["raw"]), "changed"
PYTHON
