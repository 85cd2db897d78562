"""Recipes as YAML, also for another folder: relative paths are rewritten so that they lead to the same files."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import yaml

from feedmill.planning.recipes.member import join_folder, names_of
from feedmill.planning.recipes.read import KINDS, Parsed
from feedmill.storage import join_url

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times faster, where libyaml is there


def as_yaml(recipe: Parsed) -> str:
    """Return a recipe as YAML, without what it does not set."""
    return text_of(recipe.model.model_dump(exclude_unset=True, by_alias=True, mode="json"))


def text_of(data: dict[str, Any]) -> str:
    """Return the plain data of a recipe as YAML."""
    return str(yaml.dump(data, Dumper=_DUMPER, sort_keys=False, allow_unicode=True))


def moved(recipe: Parsed, folder: str) -> dict[str, Any]:
    """Return the plain data of a recipe as a file in another folder would have it, with names for all sources.

    Orders depend on names, and names on paths, so each source of a mixture gets the name that it has. A recipe that
    another one refers to stays where it is. The prepared rows of a join keep their folder, which is otherwise named
    for the file of the recipe.

    Args:
        folder: folder or URL of the new file.
    """
    move = _mover(recipe.base, os.fspath(folder))
    data: dict[str, Any] = recipe.model.model_dump(exclude_unset=True, by_alias=True, mode="json")

    def inside(mix: dict[str, Any], model: Any) -> None:
        for kind in KINDS:
            members = getattr(model, kind, None)
            if not isinstance(members, list):
                continue
            for name, member, inner in zip(names_of(members), members, mix[kind], strict=True):
                if "/" not in name:
                    inner.setdefault("name", name)
                one(inner, member)
        for stage in mix.get("stages") or ():
            _weights(stage, move)

    def one(part: dict[str, Any], member: Any) -> None:
        for key in ("path", "recipe"):
            if part.get(key) is not None:
                part[key] = move(part[key])
        if member.join is not None:
            prepared = join_folder(recipe, member)
            if prepared is not None:
                part["prepared"] = _from(os.fspath(folder), prepared)
            parts = part["join"].values() if isinstance(part["join"], dict) else part["join"]
            for side in parts:
                side["path"] = move(side["path"])
        if member.cells is not None:
            one(part["cells"]["of"], member.cells.of)
            _weights(part["cells"], move)
        if part.get("aux") is not None:
            part["aux"] = {name: _moved_aux(url, move) for name, url in part["aux"].items()}
        if part.get("tokenize") is not None:
            _if_there(part["tokenize"], "tokenizer", recipe.base, move)
        _statistics(part, move)
        inside(part, member)

    inside(data, recipe.model)
    if recipe.model.source is not None:
        one(data["source"], recipe.model.source)
    _statistics(data, move)
    for lengths in (data.get("lengths") or {}).values():
        lengths["processor"] = move(lengths["processor"])
        _if_there(lengths, "chat_template", recipe.base, move)
    for key, name in (("cache", "dir"), ("order", "cache"), ("rollouts", "path"), ("rollouts", "steps")):
        if (data.get(key) or {}).get(name) is not None:
            data[key][name] = move(data[key][name])
    for entry in data.get("skip") or ():
        if entry.get("quarantine") is not None:
            entry["quarantine"] = move(entry["quarantine"])
    return data


def _mover(base: str, folder: str) -> Callable[[str], str]:
    """Return a function from paths relative to one folder to paths relative to another."""

    def move(path: str) -> str:
        if "://" in path or path.startswith(("/", "~/")):
            return path
        return _from(folder, join_url(base, path))

    return move


def _from(folder: str, path: str) -> str:
    """Return a path or URL relative to a folder, if both are local."""
    if "://" in path:
        return path
    path = os.path.abspath(path)
    return path if "://" in folder else os.path.relpath(path, os.path.abspath(folder))


def _moved_aux(url: str, move: Callable[[str], str]) -> str:
    scheme, mark, path = url.partition("filesystem://")
    return f"{mark}{move(path)}" if mark and not scheme else move(url)


def _if_there(options: dict[str, Any], key: str, base: str, move: Callable[[str], str]) -> None:
    """Move a value that is a path only if something lies there."""
    if options.get(key) is not None and os.path.exists(join_url(base, options[key])):
        options[key] = move(options[key])


def _weights(part: dict[str, Any], move: Callable[[str], str]) -> None:
    """Move the file of weights."""
    if isinstance(part.get("weights"), str):
        part["weights"] = move(part["weights"])


def _statistics(part: dict[str, Any], move: Callable[[str], str]) -> None:
    """Move the file of the statistics of robots, which may also be the name of a kind."""
    episodes = part.get("episodes") or {}
    if episodes.get("statistics") not in (None, "mixture", "source", "dataset"):
        episodes["statistics"] = move(episodes["statistics"])
