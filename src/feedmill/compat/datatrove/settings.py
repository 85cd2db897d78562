"""The settings of datatrove's datasets."""

from __future__ import annotations

from feedmill.formats.settings import Origin, Table, mapped, refused

_FILE = "datatrove/utils/dataset.py"
_POSITIONS = {
    "return_positions": mapped("whether samples have `positions`"),
    "positions_from_eos_token_id": mapped("the id that ends documents; without it, their ends are read from the index"),
}

FILE = Table(
    face="`DatatroveFileDataset`",
    origin=(Origin("parameters", _FILE, "DatatroveFileDataset.__init__"),),
    settings={
        "file_path": mapped("the file, a path or URL"),
        "seq_len": mapped("tokens of a sample, without the last target"),
        "token_size": mapped("bytes per token; an error if the file has another size"),
        **_POSITIONS,
        "fsize": mapped("an error if the file has another size: datatrove would drop or invent its end"),
    },
)
FOLDER = Table(
    face="`DatatroveFolderDataset`",
    origin=(Origin("parameters", _FILE, "DatatroveFolderDataset.__init__"),),
    settings={
        "data_folder": mapped("the folder, a path or URL"),
        "seq_len": mapped("tokens of a sample, without the last target"),
        "filename_pattern": mapped(
            "the pattern of paths below the folder, by the rules of fsspec: `*` stops at `/`, `**` does not; without a"
            " wildcard, the end of a name in the folder itself. Files that are no `.ds` files are an error"
        ),
        "recursive": mapped("false: `**` is the folder before it, without its subfolders"),
        "token_size": mapped("bytes per token; an error if a file has another size"),
        "shuffle": mapped("whether the files are permuted"),
        "seed": mapped("seed of that permutation"),
        **_POSITIONS,
        "paths_file": refused("folders are listed, and a list that is stored may be stale"),
    },
)

TABLES = (FILE, FOLDER)
