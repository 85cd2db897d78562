"""The table of all types: what each type of Arrow, each extension type and each feature of `datasets` becomes.

It is closed: a type that is not in it is refused by its name, and none is read as another. The readers, the page
``docs/formats/parquet.md`` and the tests are made from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from feedmill.formats.arrowtypes import extensions, nested, scalars
from feedmill.formats.arrowtypes.place import Place, Read

Make = Callable[[Place], Read | None]
"""Maker of a reader; it returns None if the type does not fit, so that its storage is read."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        title: what the page calls the types.
        names: for types of Arrow, names in `pyarrow.lib` without ``Type_``; else of the extension types or features.
        value: what the page says of the value.
        make: makes the reader; None if the types are refused.
    """

    title: str
    names: tuple[str, ...]
    value: str
    make: Make | None


NUMBERS = (
    *("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
    *("HALF_FLOAT", "FLOAT", "DOUBLE", "BOOL"),
)
DECIMALS = "DECIMAL32", "DECIMAL64", "DECIMAL128", "DECIMAL256"

TYPES = (
    Row("`null`", ("NA",), "None", scalars.plain),
    Row("integers, floats, `bool`", NUMBERS, "int, float, bool", scalars.plain),
    Row("`string`, `large_string`, `string_view`", ("STRING", "LARGE_STRING", "STRING_VIEW"), "str", scalars.text),
    Row(
        "`binary`, `large_binary`, `binary_view`, `fixed_size_binary`",
        ("BINARY", "LARGE_BINARY", "BINARY_VIEW", "FIXED_SIZE_BINARY"),
        "bytes; those of a column are decoded if its name ends like a part (`jpg`, `meta.json`)",
        scalars.plain,
    ),
    Row("`decimal32` to `decimal256`", DECIMALS, "`decimal.Decimal`", scalars.plain),
    Row("`date32`, `date64`", ("DATE32", "DATE64"), "`datetime.date`", scalars.date),
    Row(
        "`time32`, `time64`",
        ("TIME32", "TIME64"),
        "`datetime.time`; text if it needs nanoseconds",
        scalars.time_of_day,
    ),
    Row(
        "`timestamp`",
        ("TIMESTAMP",),
        "`datetime.datetime`, aware if the type has a time zone; text if it needs nanoseconds",
        scalars.timestamp,
    ),
    Row("`duration`", ("DURATION",), "`datetime.timedelta`; text if it needs nanoseconds", scalars.duration),
    Row(
        "`month_day_nano_interval`",
        ("INTERVAL_MONTH_DAY_NANO",),
        "`pyarrow.MonthDayNano`, a tuple of months, days and nanoseconds",
        scalars.plain,
    ),
    Row(
        "other intervals",
        ("INTERVAL_MONTHS", "INTERVAL_DAY_TIME"),
        "refused: pyarrow does not read their values",
        None,
    ),
    Row(
        "`list`, `large_list`, `fixed_size_list`, `list_view`, `large_list_view`",
        ("LIST", "LARGE_LIST", "FIXED_SIZE_LIST", "LIST_VIEW", "LARGE_LIST_VIEW"),
        "list; of a column of numbers or booleans: numpy array of their type, or a list if it contains nulls",
        nested.lists,
    ),
    Row(
        "`struct`",
        ("STRUCT",),
        "dict; a struct of `bytes` and `path` is a file, decoded by its first bytes",
        nested.structure,
    ),
    Row("`map`", ("MAP",), "list of tuples: key and value", nested.mapping),
    Row("`sparse_union`, `dense_union`", ("SPARSE_UNION", "DENSE_UNION"), "the value of the row's type", nested.union),
    Row("`dictionary`", ("DICTIONARY",), "the value that the number stands for", nested.dictionary),
    Row("`run_end_encoded`", ("RUN_END_ENCODED",), "the value of the run", nested.run_ends),
)
"""Types of Arrow."""

_DATASETS = "datasets.features.features."
EXTENSIONS = (
    Row("`arrow.json`", ("arrow.json",), "str: the JSON text; see `Json` below", extensions.stored),
    Row("`arrow.uuid`", ("arrow.uuid",), "`uuid.UUID`", scalars.plain),
    Row("`arrow.bool8`", ("arrow.bool8",), "bool", extensions.boolean),
    Row(
        "`arrow.fixed_shape_tensor`",
        ("arrow.fixed_shape_tensor",),
        "numpy array of its shape, with its axes in the order of its permutation; lists if it contains nulls",
        extensions.fixed_tensor,
    ),
    Row(
        "`arrow.variable_shape_tensor`",
        ("arrow.variable_shape_tensor",),
        "numpy array of the row's shape, likewise",
        extensions.variable_tensor,
    ),
    Row("`arrow.opaque`", ("arrow.opaque",), "the stored value: its type is one of another system", extensions.stored),
    Row(
        "`arrow.timestamp_with_offset`",
        ("arrow.timestamp_with_offset",),
        "`datetime.datetime` in the row's offset; text if it needs nanoseconds",
        extensions.with_offset,
    ),
    Row("`arrow.parquet.variant`", ("arrow.parquet.variant",), "refused", None),
    Row(
        "`Array2D` to `Array5D` of `datasets`",
        tuple(f"{_DATASETS}Array{n}DExtensionType" for n in range(2, 6)),
        "numpy array of their shape; lists if it contains nulls",
        extensions.array_of_lists,
    ),
)
"""Extension types. Others are refused."""

FEATURES = (
    Row("`Value`, `ClassLabel`", ("Value", "ClassLabel"), "as their type; classes are numbers", extensions.by_type),
    Row(
        "`List`, `LargeList`, `Sequence`",
        ("List", "LargeList", "Sequence"),
        "as their type; a `Sequence` of a dict is a dict of lists",
        extensions.by_type,
    ),
    Row(
        "`Translation`, `TranslationVariableLanguages`",
        ("Translation", "TranslationVariableLanguages"),
        "dict",
        extensions.by_type,
    ),
    Row(
        "`Json`",
        ("Json",),
        "what the JSON says: text, numbers, lists, dicts; with `decode=False` its text",
        extensions.decoded_json,
    ),
    Row(
        "`Array2D` to `Array5D`",
        tuple(f"Array{n}D" for n in range(2, 6)),
        "numpy array of their shape; lists if it contains nulls",
        extensions.array_of_lists,
    ),
    Row("`Image`, `Audio`, `Video`", ("Image", "Audio", "Video"), "decoded, see below", nested.media),
    Row(
        "`Pdf`, `Nifti`, `Mesh`, `BioSequence`, `BioStructure`",
        ("Pdf", "Nifti", "Mesh", "BioSequence", "BioStructure"),
        "bytes of the file",
        nested.media,
    ),
)
"""Features of `datasets`, which the metadata of a file names. Others are refused."""
