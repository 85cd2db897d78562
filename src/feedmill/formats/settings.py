"""Closed tables of other tools' settings: what each becomes in Feedmill, why it is refused, or why it has no effect.

Each face of a peer (the arguments of a command, the keys of a file, the parameters of a class) has one `Table` with
every setting of the pinned release. From it come the code that reads the settings, the section of the peer's page
(``docs/migration/write.py``), and the test that compares the names with those of the release
(``tests/compat/test_settings.py``). `feedmill.compat.settings` lists the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from feedmill.errors import ConfigError, did_you_mean, misspelled


class Fate(StrEnum):
    """Treatment of a setting: used, refused, or without effect."""

    MAPPED = "mapped"
    REFUSED = "refused"
    NO_EFFECT = "no effect"


class Setting(NamedTuple):
    """The fate of a setting.

    Attributes:
        words: what it becomes, why it is refused, or why it has no effect.
        unless: values of a refused setting that are accepted: those that are as good as leaving it out.
        warns: whether a setting without effect is reported when it is given.
    """

    fate: Fate
    words: str
    unless: tuple[Any, ...] = ()
    warns: bool = False

    def accepts(self, value: Any) -> bool:
        """Return whether a value may be given. True and 1 are different values."""
        return self.fate is not Fate.REFUSED or any(
            type(value) is type(other) and value == other for other in self.unless
        )


def mapped(to: str) -> Setting:
    """Return a setting that is used."""
    return Setting(Fate.MAPPED, to)


def refused(why: str, *unless: Any) -> Setting:
    """Return a setting that is an error, except with the values `unless`; None and False are always accepted."""
    return Setting(Fate.REFUSED, why, (None, False, *unless))


def no_effect(why: str, *, warns: bool = False) -> Setting:
    """Return a setting that is accepted and has no effect on the data; with `warns`, a Python face warns of it."""
    return Setting(Fate.NO_EFFECT, why, warns=warns)


def alike(setting: Setting, names: str, prefix: str = "") -> dict[str, Setting]:
    """Return the same setting for several names, given with spaces between."""
    return {prefix + name: setting for name in names.split()}


class Origin(NamedTuple):
    """Source of the settings of a release, for ``tests/interop/settings.py``, which reads the names from the source.

    Attributes:
        kind: ``fields`` or ``methods`` of a class; ``arguments`` that Megatron-LM makes of fields; ``parameters`` of a
            function or method; words that a function takes out of its keywords (``popped``); or ``options`` that a
            function (or a whole file, without `name`) adds to a parser or declares by decorators.
        file: path of the module in the release.
        name: the class, the function, or ``Class.method``.
        prefix: what precedes the names in the table, e.g. ``data.``.
        whole: whether all of them must be in the table; False for definitions that are mostly about other things.
        skip: names that stand for others, such as a section of which each setting is in the table.
    """

    kind: str
    file: str
    name: str = ""
    prefix: str = ""
    whole: bool = True
    skip: tuple[str, ...] = ()


class UsedSettings(NamedTuple):
    """The settings that are used, by name, and notes on all others that were given."""

    used: dict[str, Any]
    notes: list[str]


@dataclass(frozen=True)
class Table:
    """Every setting of one face of a peer.

    Attributes:
        face: what has the settings, as the page says it.
        origin: where the pinned release defines them.
        settings: name -> its fate.
        open: whether other words occur there legitimately, such as the other arguments of a training run. They are
            named in a note; elsewhere an unknown name is an error.
        likeness: how similar another word must be to a setting to count as its misspelling, from 0 to 1.
    """

    face: str
    origin: tuple[Origin, ...]
    settings: Mapping[str, Setting]
    open: bool = False
    likeness: float = 0.8

    def names(self, *fates: Fate) -> list[str]:
        """Return the names of the settings with one of the fates; without fates, all."""
        return [name for name, setting in self.settings.items() if not fates or setting.fate in fates]

    def take(self, given: Mapping[str, Any], at: Callable[[str], str | None] | str | None = None) -> UsedSettings:
        """Return what is used of the settings that were given, and notes on the others.

        Args:
            given: name -> value.
            at: the file of the settings; or a function that returns where a setting is, e.g. ``run.yaml:3``.

        Raises:
            ConfigError: a setting is refused, unknown, or misspelled.
        """

        def where(name: str) -> str | None:
            return at(name) if callable(at) else at

        used: dict[str, Any] = {}
        idle: dict[str, list[str]] = {}
        other: list[str] = []
        for name, value in given.items():
            setting = self.settings.get(name)
            if setting is None:
                other.append(name)
            elif not setting.accepts(value):
                raise ConfigError(
                    f"{name!r} is unsupported: {setting.words}", file=where(name), kind="unsupported", fix="Remove it."
                )
            elif setting.fate is Fate.MAPPED:
                used[name] = value
            elif setting.fate is Fate.NO_EFFECT:
                idle.setdefault(setting.words, []).append(repr(name))
        if other and not self.open:
            raise ConfigError(
                f"unknown setting {other[0]!r}{did_you_mean(other[0], self.settings)}",
                file=where(other[0]),
                kind="unknown-option",
                fix=f"Remove it: it is not a setting of {self.face}.",
            )
        wrong = misspelled(given, self.names(Fate.MAPPED, Fate.REFUSED), self.likeness)
        if wrong is not None and wrong[0] in other:
            raise ConfigError(
                f"unknown setting {wrong[0]!r}", file=where(wrong[0]), kind="unknown-option", fix=wrong[1]
            )
        notes = [f"{', '.join(names)} {'have' if names[1:] else 'has'} no effect: {why}" for why, names in idle.items()]
        return UsedSettings(used, [*notes, *not_used(other)])


def not_used(names: Iterable[str]) -> list[str]:
    """Return the note on words that no table has, or nothing without any."""
    listed = ", ".join(names)
    return [f"not used: {listed}"] if listed else []
