"""Field maps: map the fields of a sample type to parts of a sample, or to values inside them.

    expression := option {"," option}
    option     := part {"[" key "]"}

``part`` is a whole part name without brackets (``jpg``, ``detail.json``). ``[key]`` looks up a text key in a mapping,
or an integer index in a list (negative indices count from the end).

Options are tried from left to right. A missing part or key, an invalid index, or a lookup in a value that is neither
mapping nor list moves on to the next option; if the last option fails, its failure is the error. An option that does
not fit the grammar is read as a part named like the whole expression. A part that exists but cannot be decoded always
raises an error: trying the next option would hide corrupt data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedmill.errors import ConfigError, NotFound, did_you_mean
from feedmill.formats.sample import Sample, locate
from feedmill.samples.types import BASE_FIELDS, fields_of

_OPTION = re.compile(r"([^\[\]]+)((?:\[[^\[\]]+\])*)$")
_FIX = "Change the field map in dataset.yaml, or fix the sample."


@dataclass(frozen=True, slots=True)
class Option:
    """One alternative of an expression: a part name and the keys to look up inside its value."""

    part: str
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.part + "".join(f"[{key}]" for key in self.keys)


def parse_expression(expression: str) -> tuple[Option, ...]:
    """Return the options of one expression.

    >>> [str(option) for option in parse_expression("png,json[image][-1]")]
    ['png', 'json[image][-1]']
    """
    options = []
    for text in expression.split(","):
        match = _OPTION.match(text)
        if match is None:
            options.append(Option(expression))
        else:
            options.append(Option(match[1], tuple(match[2][1:-1].split("][")) if match[2] else ()))
    return tuple(options)


class FieldMap:
    """Mapping from the parts of a sample to the values of its fields.

    Attributes:
        expressions: Field name -> expression, as given.
        parts: Names of the parts that the expressions can read.
    """

    __slots__ = ("_options", "expressions", "parts")

    def __init__(self, expressions: Mapping[str, str]) -> None:
        self.expressions = dict(expressions)
        self._options = {field: parse_expression(text) for field, text in self.expressions.items()}
        self.parts = frozenset(option.part for options in self._options.values() for option in options)

    @classmethod
    def parse(cls, field_map: Mapping[str, str], sample_type: type[Any], *, where: str | None = None) -> FieldMap:
        """Return a field map checked against a sample type.

        Args:
            field_map: Field name -> expression.
            sample_type: The dataclass of the sample type.
            where: File that contains the field map, for errors.

        Raises:
            ConfigError: The type does not have a mapped field, a required field is missing, or an expression is not
                text.
        """
        if not isinstance(field_map, Mapping):
            raise ConfigError(
                f"'field_map' must map field names to expressions: found {field_map!r}",
                file=where,
                fix="Write for example 'field_map: {image: jpg, caption: json[caption]}'.",
            )
        _check_names(field_map, sample_type, where)
        for field, expression in field_map.items():
            if not isinstance(expression, str) or not expression:
                raise ConfigError(
                    f"the field map has {expression!r} for {field!r}: expected an expression",
                    file=where,
                    fix="Write a part name such as 'jpg' or 'json[caption]', in quotes if it looks like a number.",
                )
        return cls(field_map)

    def apply(self, sample: Sample) -> dict[str, Any]:
        """Return the value of every mapped field.

        Raises:
            NotFound: No option of a field yields a value. The error names the field, the expression, and what exists.
            DataError: A part cannot be decoded.
        """
        return {field: self._value(field, options, sample) for field, options in self._options.items()}

    def columns(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Return the values of every mapped field for all samples. Raises the errors of `apply`.

        Each column is a list, or the array or tensor that a decoder makes of all samples at once.
        """
        out: dict[str, Any] = {}
        for field, options in self._options.items():
            whole = None if options[0].keys else samples[0].decoded_together(options[0].part, samples)
            out[field] = [self._value(field, options, sample) for sample in samples] if whole is None else whole
        return out

    def _value(self, field: str, options: tuple[Option, ...], sample: Sample) -> Any:
        problem = ""
        for option in options:
            if option.part in sample:
                value = sample[option.part]
            elif option.part == "__key__":
                value = sample.key
            else:
                problem = f"the sample has no part {option.part!r} (it has: {', '.join(sorted(sample)) or 'none'})"
                continue
            try:
                return _follow(value, option)
            except (LookupError, ValueError) as error:
                problem = str(error.args[0])
        what = f"no value for the field {field!r} = {self.expressions[field]!r}: {problem}"
        raise locate(NotFound(what, kind="missing-field", fix=_FIX), sample.source, sample.key)


def _follow(value: Any, option: Option) -> Any:
    for depth, key in enumerate(option.keys):
        if isinstance(value, dict):
            if key not in value:
                raise LookupError(f"{_at(option, depth)} has no key {key!r} (it has: {_some(value)})")
            value = value[key]
        elif isinstance(value, list):
            try:
                value = value[int(key)]
            except IndexError:
                raise LookupError(
                    f"{_at(option, depth)} is a list of {len(value)} items, index {key} is out of range"
                ) from None
            except ValueError:
                raise ValueError(f"{_at(option, depth)} is a list, {key!r} is not an index") from None
        else:
            raise ValueError(f"{_at(option, depth)} is {_kind(value)}, which has no item {key!r}")
    return value


def _at(option: Option, depth: int) -> str:
    return str(Option(option.part, option.keys[:depth]))


def _some(keys: dict[Any, Any]) -> str:
    names = [str(key) for key in keys]
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names else "none"


def _kind(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"


def _check_names(field_map: Mapping[str, str], sample_type: type[Any], where: str | None) -> None:
    obligatory, optional = fields_of(sample_type)
    known = [*obligatory, *optional, "__key__"]
    of_type = f"{sample_type.__name__} requires {', '.join(obligatory) or 'no field'}" + (
        f" and optionally has {', '.join(optional)}" if optional else ""
    )
    reserved = [field for field in field_map if field in BASE_FIELDS and field != "__key__"]
    if reserved:
        raise ConfigError(
            f"{reserved[0]} is set by the loader and cannot be mapped", file=where, fix="Remove it from the field map."
        )
    unknown = [field for field in field_map if field not in known]
    if unknown:
        raise ConfigError(
            f"{sample_type.__name__} has no field {unknown[0]!r}{did_you_mean(unknown[0], known)}",
            file=where,
            fix=f"{of_type}.",
            kind="bad-field-map",
        )
    missing = [field for field in obligatory if field not in field_map]
    if missing:
        raise ConfigError(
            f"the field map lacks the required field {', '.join(map(repr, missing))}",
            file=where,
            fix=f"Add {missing[0]!r} to the field map: {of_type}.",
            kind="missing-field",
        )
