"""Parquet and Arrow files (`dataset.py`, `footer.py`), and datasets of Hugging Face on disk (`huggingface.py`)."""

from feedmill.formats.format import ROWS, Format, TargetFormat

PARQUET = Format(
    "parquet",
    "Parquet",
    "rows",
    open="feedmill.formats.tables.dataset:open_found_parquet",
    files=(".parquet",),
    folders=(".parquet",),
    listed=(".parquet",),
    data=("tables",),
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
    "arrow", "Arrow file", "rows", open="feedmill.formats.tables.dataset:open_found_arrow", files=(".arrow",)
)
HUGGINGFACE = Format(
    "huggingface",
    "Hugging Face dataset on disk",
    "rows",
    open="feedmill.formats.tables.huggingface:open_found",
    later_marks=("dataset_dict.json", "state.json", "dataset_info.json"),
    is_folder="feedmill.formats.tables.huggingface:mark",
    splits=True,
    data=("tables",),
    beside=(".json",),
)
FORMATS = (PARQUET, ARROW, HUGGINGFACE)
