"""Tars of samples: `dataset.py` knows where each is and parses it; scanning (`scan.py`, `index.py`), and `write.py`.

`names.py` expands lists and patterns of shards, braces and globs; `opening.py` unpacks compressed shards; `finished.py`
records finished shards in a journal; `wids.py` reads and writes an index of shards; `strays.py` finds members that
spoil samples, and `regrouped.py` joins parts that are not adjacent.
"""

from feedmill.formats.format import SAMPLES, Format, TargetFormat

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
"""Suffixes of compressed tars, which are unpacked when they are opened."""
WEBDATASET = Format(
    "webdataset",
    "folder of tars",
    "samples",
    open="feedmill.formats.tar.opening:open_found",
    folders=(".tar",),
    listed=(".tar", *COMPRESSED),
    check="tars",
    repair="tars",
    scanned=True,
    targets=(
        TargetFormat(
            "wds",
            "a folder of tars; with `--wids` an index of them",
            "splits, sample types, subflavors",
            "tars",
            SAMPLES,
            shards="shard-%06d.tar",
            beside="feedmill.formats.tar.wids:BESIDE",
            options=("wids",),
        ),
    ),
)
TAR = Format(
    "tar",
    "a tar",
    "samples",
    open="feedmill.formats.tar.opening:open_found",
    files=(".tar", *COMPRESSED),
    check="tars",
    repair="tar",
)
WIDS = Format(
    "wids",
    "wids index",
    "samples",
    open="feedmill.formats.tar.wids:open_found",
    files=(".json",),
    is_file="feedmill.formats.tar.wids:is_wids",
    check="tars",
)
FORMATS = (WEBDATASET, TAR, WIDS)
