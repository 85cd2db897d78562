#!/usr/bin/env bash
# One key with `//` makes a bucket unlistable for obstore.
#
# S3 allows keys with empty parts, and joins of `prefix/` and `/name` make them. obstore refuses to read or write
# such a key, which one can guess; but the listing of everything else in the bucket fails, too, and does not give the
# objects before it.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check obstore==0.12.1 "moto[server]==5.2.5" boto3
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import logging
import boto3, obstore
from moto.server import ThreadedMotoServer

logging.disable(logging.CRITICAL)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
url = "http://{}:{}".format(*server.get_host_and_port())
client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s")
client.create_bucket(Bucket="bucket")
for key in ("a/one.txt", "b//two.txt", "c/three.txt"):
    client.put_object(Bucket="bucket", Key=key, Body=b"x")
store = obstore.store.S3Store("bucket", endpoint=url, region="us-east-1", access_key_id="k", secret_access_key="s",
                              client_options={"allow_http": True})
listed, error = [], None
try:
    for page in obstore.list(store):
        listed += [entry["path"] for entry in page]
except obstore.exceptions.BaseError as raised:
    error = type(raised).__name__
keys = [entry["Key"] for entry in client.list_objects_v2(Bucket="bucket")["Contents"]]
server.stop()
print(f"boto3 lists {keys}; obstore lists {listed} and raises {error}")
assert len(keys) == 3 and listed == [] and error == "InvalidPathError", "changed"
PYTHON
