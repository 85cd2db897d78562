"""Assign the files of a folder to splits by their names, as Hugging Face's ``load_dataset(folder)`` does.

The first of these rules that finds files of a split applies to the whole folder. Files without a split are ignored:

    data/NAME-00000-of-00002.parquet    the split is NAME, which may be any name
    a folder's name                     train/0.parquet, data/my_test/0.parquet
    a file's name                       train.parquet, deep/x-val-1.parquet
    none                                all files are the split train

A word must stand alone: between the ends of the name, dots, hyphens, underscores, spaces or digits.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from feedmill.errors import NotFound

File = TypeVar("File")

_SHARDED = re.compile(r"data/([^/]*)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*")
WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_AROUND = "[-._ 0-9]"
_IN_FILE = ("{word}{around}.*", ".*{around}{word}{around}.*")
_IN_FOLDER = ("{word}", "{word}{around}.*", ".*{around}{word}", ".*{around}{word}{around}.*")


_ANY_WORD = re.compile("|".join(word for words in WORDS.values() for word in words))
_DIGITS = re.compile(r"[0-9]+")


def splits_in(paths: Sequence[str]) -> dict[str, list[str]]:
    """Return the files of each split, in the order of `paths`, ``train`` first; empty if all are in one, or in none.

    Names that differ only in digits are looked at once: a hundred thousand shards take a fifth of a second.
    """
    if not _ANY_WORD.search("\n".join(paths)) and not any(map(_SHARDED.fullmatch, paths[:1])):
        return {}
    alike: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        alike[_DIGITS.sub(_zeros, path)].append(path)
    place = {path: number for number, path in enumerate(paths)}
    found = {
        split: sorted((path for form in forms for path in alike[form]), key=place.__getitem__)
        for split, forms in sorted(by_split(list(alike), str).items(), key=lambda one: one[0] != "train")
    }
    return {} if len(found) == 1 and len(next(iter(found.values()))) == len(paths) else found


def unknown_split(url: str, split: str, parts: Mapping[str, object]) -> NotFound:
    """Return the error for a split that no name of a file tells."""
    there = f"there are {', '.join(parts)}" if parts else "there are none"
    return NotFound(
        f"there is no split {split!r}: by the names of its files, {there}",
        file=url,
        kind="no-such-split",
        fix="Name one of these." if parts else "Open it without a split.",
    )


def _zeros(digits: re.Match[str]) -> str:
    """Return digits of which only those matter that are the number of a shard: five, or more."""
    return "0" * min(len(digits[0]), 6) if len(digits[0]) > 4 else "0"


def by_split(files: Sequence[File], path: Callable[[File], str]) -> dict[str, list[File]]:
    """Return the files of each split that has files, in the order of the words and forms, then of `files`.

    Args:
        files: All files of the folder.
        path: Returns the path of a file below the folder.
    """
    sharded: dict[str, list[File]] = {}
    for file in files:
        match = _SHARDED.fullmatch(path(file))
        if match:
            sharded.setdefault(match[1], []).append(file)
    if sharded:
        return sharded
    for forms in (_IN_FOLDER, _IN_FILE):
        found = {split: _of_words(words, forms, files, path) for split, words in WORDS.items()}
        found = {split: chosen for split, chosen in found.items() if chosen}
        if found:
            return found
    return {"train": list(files)}


def _of_words(
    words: Sequence[str], forms: Sequence[str], files: Sequence[File], path: Callable[[File], str]
) -> list[File]:
    chosen: dict[int, File] = {}
    for form in (re.compile(form.format(word=word, around=_AROUND)) for word in words for form in forms):
        for number, file in enumerate(files):
            *folders, name = path(file).split("/")
            if any(form.fullmatch(step) for step in (folders if forms is _IN_FOLDER else [name])):
                chosen.setdefault(number, file)
    return list(chosen.values())
