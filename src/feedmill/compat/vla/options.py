"""Parse the settings of a VLA Foundry run from YAML and dotted options, and describe their effect in Feedmill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from feedmill.errors import ConfigError
from feedmill.formats.settings import Fate
from feedmill.formats.yamls import read_settings
from feedmill.planning.dialects.vla import SETTINGS, named, nested, put
from feedmill.samples.robotics.relative import PoseGroup, pose_groups
from feedmill.storage import open_store, split_url


class Meaning(NamedTuple):
    """A setting: its name and value, whether Feedmill uses it, and a description of its effect."""

    name: str
    value: Any
    used: bool
    words: str


DEFAULTS: Mapping[str, Any] = {
    "num_checkpoints": 5,
    "hparams.global_batch_size": 512,
    "data.prefetch_factor": 4,
    "data.seq_len": 2048,
}


def parse_options(arguments: Sequence[str]) -> dict[str, Any]:
    """Return options such as ``--data.seq_len 512`` or ``--data.seq_len=512`` as a nested mapping.

    Values are parsed as YAML.

    Raises:
        ConfigError: an argument is not such an option, or its value is not valid YAML.
    """
    out: dict[str, Any] = {}
    todo = list(arguments)
    while todo:
        word = todo.pop(0)
        name, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise ConfigError(
                f"{word!r} is not an option", kind="bad-option", fix="Pass the file first, then --data.NAME VALUE."
            )
        if not equals:
            if not todo:
                raise ConfigError(f"the option {word} has no value", kind="bad-option", fix="Write --data.NAME VALUE.")
            text = todo.pop(0)
        try:
            value = read_settings(text, f"--{name}")
        except ConfigError:
            raise ConfigError(f"the value of --{name} is not valid YAML: {text[:80]!r}", kind="bad-option") from None
        put(out, name.replace("-", "_").split("."), value, name)
    return out


def merged(config: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the settings of another merged into it; those of `more` override it."""
    out = dict(config)
    for key, value in more.items():
        old = out.get(key)
        out[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return out


def understood(config: Mapping[str, Any], file: str | None = None) -> list[Meaning]:
    """Return the meaning of each setting of a nested configuration.

    Raises:
        ConfigError: a setting is unknown.
    """
    given = dict(named(config))
    SETTINGS.take(given, file)
    known = [(name, value, SETTINGS.settings[name]) for name, value in given.items()]
    return [Meaning(name, value, setting.fate is Fate.MAPPED, setting.words) for name, value, setting in known]


def read_pose_groups(url: str) -> tuple[PoseGroup, ...]:
    """Return the ``pose_groups`` of a YAML file: a run's, or VLA Foundry's file of action fields.

    Raises:
        NotFound: the file does not exist.
        ConfigError: the file has no valid ``pose_groups``.
    """
    folder, name = split_url(url)
    found = read_settings(open_store(folder).read(name), url)
    config = nested(found) if isinstance(found, Mapping) else {}
    groups = config.get("pose_groups") or get(config, "data.pose_groups")
    if not groups:
        raise ConfigError("the file has no pose_groups", file=url, fix="Name the YAML file that lists them.")
    try:
        return pose_groups(groups)
    except ConfigError as error:
        error.file = url
        raise


def get(config: Mapping[str, Any], name: str) -> Any:
    """Return a setting by its dotted name, or its default."""
    section, _, key = name.rpartition(".")
    inner = config.get(section, {}) if section else config
    value = inner.get(key) if isinstance(inner, Mapping) else None
    return DEFAULTS.get(name) if value is None else value
