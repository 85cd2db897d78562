"""Copies of recipes with other weights, saved from the page of a mixture by a server with ``--edit``."""

from __future__ import annotations

import os
import re
import secrets
from typing import Any

from feedmill.errors import ConfigError, StorageError
from feedmill.planning.recipes.member import names_of
from feedmill.planning.recipes.recipe import Recipe
from feedmill.web.library import Thing
from feedmill.web.state import State
from feedmill.web.weights import as_yaml, changed_recipe, members_at

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.ya?ml", re.ASCII)


def proposed_name(path: str) -> str:
    """Return a name for a copy that does not exist yet: ``mix-2.yaml`` beside ``mix.yaml``."""
    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.") or "recipe"
    suffix = suffix if suffix in (".yaml", ".yml") else ".yaml"
    number = 2
    while os.path.lexists(os.path.join(folder, f"{stem}-{number}{suffix}")):
        number += 1
    return f"{stem}-{number}{suffix}"


def save_copy(thing: Thing, state: State, name: str) -> str:
    """Write the recipe with the weights of the address beside it, under a name that does not exist. Return its path.

    Args:
        thing: a recipe on this machine.
        state: the address of the page, whose weights the copy has.
        name: name of the file, without a folder.

    Raises:
        ConfigError: the server is read-only, nothing is changed, the name is invalid, or the file exists.
        StorageError: it cannot be written.
    """
    if not thing.edit:
        raise ConfigError("this server is read-only", kind="read-only", fix="Start it with --edit.")
    if thing.kind != "recipe" or "://" in thing.path:
        raise ConfigError("only copies of recipes on this machine are written", file=thing.path, kind="read-only")
    if not _NAME.fullmatch(name):
        fix = "Use letters, digits, '.', '_' and '-', and end with .yaml."
        raise ConfigError(f"{name[:40]!r} is not a name for a recipe", kind="bad-name", fix=fix)
    changed = changed_recipe(thing.recipe, state)
    if changed is None:
        raise ConfigError("no weight is changed: there is nothing to save", kind="bad-address")
    path = os.path.join(os.path.dirname(thing.path), name)
    if os.path.lexists(path):
        raise _exists(path)
    _save(changed, thing.recipe, thing.path, path)
    return path


def _save(changed: Recipe, original: Recipe, source: str, path: str) -> None:
    """Write a changed recipe as a file, after copies of the recipes that it names and that are changed, too."""
    data = changed.model.model_dump(exclude_unset=True)
    for place, inner in changed.nested.items():
        if inner.fingerprint == original.nested[place].fingerprint:
            continue
        if inner.file is None or "://" in inner.file or inner.file == changed.file:
            raise ConfigError("the changed recipe cannot be written as a file beside it", file=source, kind="no-copy")
        name = proposed_name(inner.file)
        _save(inner, original.nested[place], inner.file, os.path.join(os.path.dirname(inner.file), name))
        member: Any = data
        for step in place:
            member = member[step]
        member.setdefault("name", names_of(members_at(changed, place[:-2]))[int(place[-1])])  # orders depend on it
        member["recipe"] = os.path.join(os.path.dirname(member["recipe"]), name)
    final = changed.restated(
        {key: data[key] for key in ("blend", "blend_epochized", "concat", "source") if key in data}
    )
    text = as_yaml(final)
    if Recipe.parse(text, base=os.path.dirname(path) or ".").fingerprint != final.fingerprint:
        raise ConfigError("the changed recipe cannot be written as a file beside it", file=source, kind="no-copy")
    _create(path, f"# A copy of {os.path.basename(source)} with other weights.\n{text}".encode())


def _exists(path: str) -> ConfigError:
    return ConfigError("the file exists", file=path, kind="exists", fix="Give another name.")


def _create(path: str, data: bytes) -> None:
    """Write a file as a whole under a name that must not exist."""
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # fails if the name exists, unlike a rename
        finally:
            os.unlink(temporary)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise StorageError(f"the copy cannot be written ({error.strerror})", file=path, kind="storage") from None
