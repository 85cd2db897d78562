"""Folders of img2dataset: shards with statistics, as tars, Parquet or files."""

from feedmill.formats.format import Format

IMG2DATASET = Format(
    "img2dataset",
    "img2dataset folder",
    "samples",
    open="feedmill.formats.img2dataset.dataset:open_found",
    is_folder="feedmill.formats.img2dataset.mark:is_img2dataset",
    check="open",
    repair="tars",
    data=("Parquet", "tars", "text", "media"),
    beside=(".json",),
)
FORMATS = (IMG2DATASET,)
