"""Count the kinds of values in each field of all samples, and choose the columns of formats with typed columns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from feedmill.converting.fates import (
    EXACT,
    KINDS,
    TEXTUAL,
    Changed,
    changed_of,
    family,
    kind_of,
    kind_of_part,
    losses,
)
from feedmill.converting.fields import KEY, Taken, encoded, refuse_unnamed, wanted
from feedmill.converting.preview import Loss, named
from feedmill.converting.values import Coded, digest, plain_bytes, simple, tagged, values_of
from feedmill.errors import ConfigError, DataError
from feedmill.formats.arrowtypes.features import features_of, kinds_in
from feedmill.formats.columnar import JSON, Forms
from feedmill.formats.sample import Sample
from feedmill.samples.decode import codec_of

Survey = dict[str, dict[str, int]]
"""Field -> kind -> number of samples, see `feedmill.converting.fates`.

The field "" counts all samples as "samples", and those whose key is not their number as "keyed".
"""

COUNTS = ""
_AS_STORED = {"Value", "ClassLabel", "List", "LargeList", "Sequence", "Translation", "TranslationVariableLanguages"}
"""Features of `datasets` whose values are those of their types."""


class Columns(NamedTuple):
    """The columns of a destination.

    Attributes:
        forms: column -> form, as its `ColumnWriter` names them.
        changed: columns whose values are declared to change.
        typed: whether the source has typed columns, not parts.
    """

    forms: Mapping[str, str]
    changed: Changed
    typed: bool


def survey(samples: Iterable[tuple[int, Taken]]) -> Survey:
    """Return the survey of samples, given with their numbers."""
    found = _nothing()
    for number, taken in samples:
        found[COUNTS]["samples"] += 1
        found[COUNTS]["keyed"] += taken.key != str(number)
        for name, value in taken.values.items():
            if name == COUNTS:  # a part without a name, which is refused when it is written
                continue
            kind = kind_of(value) if taken.typed else kind_of_part(name, value)
            found.setdefault(name, Counter())[kind] += 1
    return {name: dict(counts) for name, counts in found.items()}


def _nothing() -> dict[str, Counter[str]]:
    return {COUNTS: Counter(samples=0, keyed=0)}


def merge(surveys: Iterable[Survey]) -> Survey:
    """Return the sum of several surveys. Fields are in the order of their first occurrence."""
    out = _nothing()
    for found in surveys:
        for name, counts in found.items():
            out.setdefault(name, Counter()).update(counts)
    return {name: dict(counts) for name, counts in out.items()}


def kinds(found: Survey, name: str) -> tuple[set[str], bool]:
    """Return the kinds of a field without null, and whether it is missing or null in any sample."""
    counts = found[name]
    have = set(counts) - {"null"}
    missing = sum(n for kind, n in counts.items() if kind != "null") < found[COUNTS]["samples"]
    return have, missing


def names(found: Survey) -> list[str]:
    """Return the names of all fields."""
    return [name for name in found if name != COUNTS]


def form_of(known: Forms, have: set[str], *, missing: bool) -> str:
    """Return the form of a column with values of these kinds: of its own, or bytes, text or JSON."""
    have = have - {"empty"} if any(kind.startswith("list:") for kind in have) else have
    missing = missing and not known.nulls
    rows = {family(kind) for kind in have}
    own = known.own(have)
    if len(own) == 1 and (form := own.pop()) and (not missing or rows <= EXACT):
        return form
    if rows == {"array"} and not missing:
        return known.bytes  # of .npy files
    if rows and rows <= EXACT:
        return known.media
    if rows == {"list"} and known.lists and not missing:
        return known.lists
    texts = {kind for kind in rows if kind.startswith("text:")} | ({"text"} if "part" in rows else set())
    if rows & EXACT and rows <= EXACT | texts:  # parts, of which some are no text
        return known.bytes
    return known.text if rows and rows <= TEXTUAL and not missing else JSON


def store_of(known: Forms, have: set[str], *, missing: bool = False) -> str:
    """Return how a column without a form of its own is stored, see `feedmill.converting.fates`; "" if it has one."""
    form = form_of(known, have, missing=missing)
    return "text" if form == known.text else known.json if form == JSON else ""


def columns_of(known: Forms, found: Survey, *, to: str, typed: bool, skip: bool) -> tuple[Columns, list[Loss]]:
    """Return the columns, in the order of the fields, and the losses.

    Args:
        typed: whether the source has typed columns.
        skip: whether samples that cannot be converted are skipped.

    Raises:
        ConfigError: the format cannot store the values of a column.
    """
    forms: dict[str, str] = {KEY: known.text} if found[COUNTS]["keyed"] else {}
    stores: dict[str, tuple[str, set[str]]] = {}
    empty: dict[str, str] = {}
    for name in names(found):
        have, missing = kinds(found, name)
        form = form_of(known, have, missing=missing)
        column = column_of(name, have, form, known, typed=typed)
        forms[column] = form
        decoded = form != known.bytes or not typed or bool(codec_of(column))
        if store := store_of(known, have, missing=missing) if decoded else "bytes":
            stores[column] = store, have
        if missing and not known.nulls and form in known.exact:
            empty[name] = column
    changed = changed_of(stores)
    out = losses(changed)
    if any(kinds(found, name)[1] for name in names(found)):
        out.append(Loss("the difference between missing fields and null"))
    return Columns(forms, changed, typed), [*out, *_missing(empty, forms, known, to, skip=skip)]


def _missing(empty: Mapping[str, str], forms: Mapping[str, str], known: Forms, to: str, *, skip: bool) -> list[Loss]:
    """Return the loss of values that would become empty bytes. Raises `ConfigError` if no decoder reads those."""
    coded = [name for name, column in empty.items() if is_coded(column, forms[column], known)]
    if coded and not skip:
        raise ConfigError(
            f"{to} cannot store samples without {named(coded)}: empty bytes cannot be decoded",
            kind="loses-content",
            fix="Leave these samples out with --on-error skip, select other fields with --fields, or choose another"
            " format.",
        )
    plain = [name for name in empty if name not in coded]
    if not plain:
        return []
    fix = "Select other fields with --fields, or choose another format."
    return [Loss(f"samples without {named(plain)}: a missing value would become empty bytes", content=True, fix=fix)]


def is_coded(name: str, form: str, known: Forms) -> bool:
    """Return whether the bytes of a column are decoded when they are read."""
    return form in known.exact and (form != known.bytes or bool(codec_of(name)))


def column_of(name: str, have: set[str], form: str, known: Forms, *, typed: bool) -> str:
    """Return the column of a field: its name, with the suffix that decodes its bytes if its form does not."""
    rows = {family(kind) for kind in have}
    if form != known.bytes or "bytes" in rows or not (typed or "array" in rows):
        return name
    ends = {"npy"} if "array" in rows else {{"jpeg": "jpg"}.get(kind, kind.rpartition(":")[2]) for kind in have}
    end = min(ends, default="")
    return f"{name}.{end}" if end and codec_of(name) != codec_of(end) else name


def row_of(known: Forms, columns: Columns, taken: Taken) -> dict[str, Any]:
    """Return the values of a sample for all columns but that of the key, as they will be read back; None if missing.

    Raises:
        DataError: the columns cannot store the sample.
    """
    sources = {_column(columns.forms, name): name for name, value in taken.values.items() if value is not None}
    _refuse_unsurveyed(taken, sources)
    out: dict[str, Any] = {}
    for name, form in columns.forms.items():
        if name in sources:
            out[name] = _stored(known, columns, name, taken.values[sources[name]])
        elif name != KEY:
            out[name] = None if known.nulls or form not in known.exact else b""
            if out[name] is not None and is_coded(name, form, known):
                raise DataError(
                    f"the sample has no {name!r}, and the format has no missing values of this kind",
                    record=taken.key,
                    kind="missing-field",
                    fix="Select other fields with --fields, or choose another format.",
                )
    return out


def row_digest(key: str, values: Mapping[str, Any], columns: Columns) -> bytes:
    """Return the digest of such values. A key that is no column is the number of the sample, and is not compared."""
    return digest(key if KEY in columns.forms else "", values)


def read_digest(columns: Columns, sample: Sample) -> bytes:
    """Return the digest of a sample that was read back from columns. 16 bytes."""
    values = values_of(sample)
    return row_digest(values.pop(KEY, None) or sample.key, values, columns)


def _column(forms: Mapping[str, str], name: str) -> str:
    """Return the column of a field: of its name, or with the suffix that `column_of` gave it; "" if there is none."""
    return name if name in forms else next((c for c in forms if c.rpartition(".")[0] == name), "")


def _stored(known: Forms, columns: Columns, name: str, value: Any) -> Any:
    """Return a value as its column gives it back: as it is, or as it was declared to change."""
    form, changed = columns.forms[name], name in columns.changed
    if form in (JSON, known.text):
        if isinstance(value, bytes) and not columns.typed:
            return value.decode()
        value = simple(value) if changed else value
        return json.dumps(value, ensure_ascii=False) if form == JSON and known.json == "json text" else value
    if form not in known.exact:
        return value
    data = plain_bytes(value)
    codec = "npy" if not isinstance(value, bytes) else value.suffix if isinstance(value, Coded) else ""
    return Coded(data, codec) if codec and not changed else data


def _refuse_unsurveyed(taken: Taken, sources: Mapping[str, str]) -> None:
    """Raise `DataError` for what the columns cannot store.

    That is text with lone surrogates, a field without a name, and fields that the survey did not see.
    """
    refuse_unnamed(taken)
    for name, value in {KEY: taken.key, **taken.values}.items():
        if isinstance(value, str):
            encoded(taken.key, name, value)
    if "" in sources:
        raise DataError(
            f"the field {sources['']!r} is new: no sample had it when the source was surveyed",
            record=taken.key,
            kind="changed",
            fix="The source has changed. Run the conversion again with --overwrite.",
        )


def known_kinds(schema: Any, fields: Sequence[str]) -> Survey | None:
    """Return the kinds that columns of these Arrow types and features can have; None if only their values tell.

    Samples are not counted, and no column is known to be without nulls.
    """
    out: Survey = {COUNTS: {"samples": 1, "keyed": 0}}
    features = features_of(schema, None)
    for field in schema:
        if wanted(field.name, fields):
            found = _kinds_of_type(field.type)
            if found is None or not kinds_in(features.get(field.name)) <= _AS_STORED:
                return None
            coded = tagged(field.name, b"")
            out[field.name] = dict.fromkeys({kind_of(coded) if kind == "bytes" else kind for kind in found}, 0)
    return out


def _kinds_of_type(kind: Any, *, nested: bool = False) -> set[str] | None:
    """Return the kinds of the values of an Arrow type; None for types that are decoded, or that are not in the list."""
    import pyarrow as pa
    from pyarrow import types

    plain = (
        (types.is_string, "text"), (types.is_large_string, "text"), (types.is_boolean, "bool"),
        (types.is_integer, "int"), (types.is_floating, "float"), (types.is_null, "null"), (types.is_date, "date"),
        (types.is_timestamp, "timestamp"), (types.is_time, "time"), (types.is_duration, "duration"),
        (types.is_decimal, "decimal"),
    )  # fmt: skip
    if isinstance(kind, pa.BaseExtensionType):
        return None
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_type
        if not nested and (types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)):
            return {f"array:{np.dtype(inner.to_pandas_dtype()).str}:1", "json"}
        return _inside([_kinds_of_type(inner, nested=True)])
    if types.is_struct(kind) and not {field.name for field in kind} & {"bytes", "path"}:
        return _inside([_kinds_of_type(field.type, nested=True) for field in kind])
    if not nested and (types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)):
        return {"bytes"}
    return next(({name} for matches, name in plain if matches(kind)), None)


def _inside(found: Sequence[set[str] | None]) -> set[str] | None:
    """Return the kind of nested values that have these kinds inside."""
    if None in found:
        return None
    leaves = {kind for kinds in found if kinds for kind in kinds}
    special = {leaf for kind in leaves for leaf in kind.removeprefix("json").lstrip(":").split(",") if leaf}
    special = {leaf for leaf in special if KINDS[leaf].json}
    return {f"json:{','.join(sorted(special))}" if special else "json"}


def changes_in(store: str, found: Survey) -> tuple[Changed, list[Loss]]:
    """Return the columns that change in a store without forms, ``lines`` or ``parts``, and the losses."""
    plain = {name for name in names(found) if store == "parts" and name.startswith("__")}  # no decoder reads such parts
    changed = changed_of({n: ("bytes" if n in plain else store, kinds(found, n)[0]) for n in names(found)})
    return changed, losses(changed)
