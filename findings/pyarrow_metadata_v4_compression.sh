#!/usr/bin/env bash
# Arrow files written with metadata version 4 and compression are read back as other numbers, without an error.
#
# `IpcWriteOptions` takes `metadata_version=V4` (for old readers) and `compression` together. The buffers are
# compressed, but the reader of the same release does not see it: it takes the compressed bytes for the values. Columns
# of the right type and length come back, and only `validate(full=True)` finds that a buffer is too short. So it is for
# files and for streams, with zstd and with lz4; version 5 is right.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1
"$work/venv/bin/python" - <<'PYTHON'
import io

import pyarrow as pa
from pyarrow import ipc

print("pyarrow", pa.__version__)
table = pa.table({"id": range(5)})
for form, new, read in (("file", ipc.new_file, ipc.open_file), ("stream", ipc.new_stream, ipc.open_stream)):
    for codec in ("zstd", "lz4"):
        for version in (ipc.MetadataVersion.V4, ipc.MetadataVersion.V5):
            out = io.BytesIO()
            options = ipc.IpcWriteOptions(compression=codec, metadata_version=version)
            with new(out, table.schema, options=options) as writer:
                writer.write_table(table)
            found = read(pa.py_buffer(out.getvalue())).read_all().column("id").to_pylist()
            print(f"{form}, {codec}, {version.name}: {found}")
            assert len(found) == 5 and (found == [0, 1, 2, 3, 4]) == (version == ipc.MetadataVersion.V5), "changed"
PYTHON
