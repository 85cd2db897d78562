"""JSON lines: one file (`dataset.py`), several (`folder.py`), where lines lie (`index.py`), splits (`splits.py`)."""

from feedmill.formats.format import ROWS, Format, TargetFormat

PACKED_ENDS = ("", ".gz", ".gzip", ".zst", ".zstd", ".bz2", ".xz")
LINE_SUFFIXES = tuple(name + end for name in (".jsonl", ".json", ".ndjson") for end in PACKED_ENDS)
"""File name suffixes of JSON lines."""
PACKED = tuple(end for end in LINE_SUFFIXES if end.count(".") == 2)
"""Those of compressed ones, which are unpacked into the cache folder when they are opened."""
JSONL = Format(
    "jsonl",
    "JSONL file",
    "rows",
    open="feedmill.formats.jsonl.dataset:open_found",
    files=(".jsonl",),
    splits=True,
    options=("split_config",),  # which metadatasets of Energon may give to each source, and Energon ignores here
    check="lines",
    repair="lines",
    targets=(
        TargetFormat(
            "jsonl",
            "a `.jsonl` file and its `.idx`",
            "bytes, sample types, subflavors",
            "lines",
            ROWS,
            is_file=True,
            surveyed=True,
            keeps=("splits",),
        ),
        TargetFormat(
            "jsonl.gz", "lines of JSON, compressed with gzip", "bytes, splits", "lines", ("rows", "lines"), is_file=True
        ),
        TargetFormat(
            "jsonl.zst",
            "lines of JSON, compressed with zstd",
            "bytes, splits",
            "lines",
            ("rows", "lines"),
            is_file=True,
        ),
    ),
)
DOCUMENTS = Format(
    "documents",
    "tree of JSON lines (Dolma's documents)",
    "lines",
    open="feedmill.formats.jsonl.folder:open_found",
    files=PACKED,
    folders=(".jsonl", *PACKED),
    is_folder="feedmill.formats.jsonl.folder:is_folder",
    listed=(".jsonl", *PACKED),
    scanned=True,
)
FORMATS = (JSONL, DOCUMENTS)
