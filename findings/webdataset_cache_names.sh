#!/usr/bin/env bash
# WebDataset's cache names a shard by the last part of its URL: two datasets with one `cache_dir` are read as one.
#
# `.../train/000000.tar` and `.../val/000000.tar` are one file in the cache. Whatever was read first is given for both, from
# then on and in later runs: validation on samples of training, or last week's version of a dataset under another address.
# Nothing is raised: the file is a good tar. URLs with `pipe:` have their whole text as name, and do not meet.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check webdataset==1.0.2 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import functools
import http.server
import io
import os
import tarfile
import threading
from importlib.metadata import version

import webdataset


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


for split in ("train", "val"):
    os.makedirs(f"served/{split}")
    with tarfile.open(f"served/{split}/000000.tar", "w") as shard:
        for number in range(2):
            text = f"{split} {number}".encode()
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = len(text)
            shard.addfile(member, io.BytesIO(text))
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory="served"))
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{server.server_port}"


def read(split, prefix="", **cache):
    url = f"{prefix}{address}/{split}/000000.tar"
    return [sample["txt"].decode() for sample in webdataset.WebDataset(url, shardshuffle=False, **cache)]


os.mkdir("cache")
right = ["train 0", "train 1"], ["val 0", "val 1"]
print("webdataset", version("webdataset"))
for name, options, expected in (
    ("without a cache", {}, right),
    ("with a cache", {"cache_dir": "cache"}, (right[0], right[0])),
    ("with a cache, by a pipe", {"cache_dir": "cache", "prefix": "pipe:curl -s "}, right),
):
    seen = read("train", **options), read("val", **options)
    print(f"  {name}: train/000000.tar has {seen[0]}, val/000000.tar has {seen[1]}")
    assert seen == expected, "changed"
PYTHON
