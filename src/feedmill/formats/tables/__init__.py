"""Parquet and Arrow files (`dataset.py`), and datasets of Hugging Face on disk (`huggingface.py`).

`schemas.py` unites the schemas of several files, `footer.py` reads what pyarrow does not tell of
footers, and `unreadable.py` has the errors of files that cannot be read.
"""

from feedmill.formats.format import ROWS, Format, TargetFormat

ARROW_SUFFIXES = (".arrow", ".feather", ".arrows")
"""Suffixes of Arrow files: files, Feather files of version 2, and streams; each may have any of these contents."""

PARQUET = Format(
    "parquet",
    "Parquet",
    "rows",
    open="feedmill.formats.tables.dataset:open_found_parquet",
    files=(".parquet",),
    folders=(".parquet",),
    listed=(".parquet",),
    data=("Parquet",),
    scanned=True,
    targets=(
        TargetFormat(
            "parquet",
            "a folder of `.parquet` files, or one file",
            "splits, sample types",
            "table",
            ROWS,
            shards="part-%06d.parquet",
            is_file=True,
            surveyed=True,
        ),
    ),
)
ARROW = Format(
    "arrow",
    "Arrow",
    "rows",
    open="feedmill.formats.tables.dataset:open_found_arrow",
    files=ARROW_SUFFIXES,
    folders=ARROW_SUFFIXES,
    is_folder="feedmill.formats.tables.dataset:arrow_folder",
    listed=ARROW_SUFFIXES,
    data=("Arrow",),
    scanned=True,
)
HUGGINGFACE = Format(
    "huggingface",
    "Hugging Face dataset on disk",
    "rows",
    open="feedmill.formats.tables.huggingface:open_found",
    later_marks=("dataset_dict.json", "state.json", "dataset_info.json"),
    is_folder="feedmill.formats.tables.huggingface:mark",
    splits=True,
    data=("Arrow",),
    beside=(".json",),
)
FORMATS = (PARQUET, ARROW, HUGGINGFACE)
