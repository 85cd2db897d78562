"""Assign the files of a folder to splits, as Hugging Face's ``load_dataset(folder)`` does.

A ``README.md`` of the Hub may declare them: its YAML head lists configurations (``configs``) by the patterns of their
files. The splits of the default configuration have their own names, those of others are ``CONFIG/SPLIT``. A file that
two patterns of a split match is read once, a split without files is none (see ``findings/datasets_card_patterns.sh``).

Without one, names tell. The first of these rules that finds files of a split applies to the whole folder. Files without
a split are ignored:

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
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeVar

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.format import ALL_SPLITS
from feedmill.storage import Store
from feedmill.storage.limits import refuse_large

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
CARDS = ("README.md", ".huggingface.yaml")
"""Files that may declare the splits of their folder."""
_LARGEST = 1 << 24
_EVERYTHING = f"name the split '{ALL_SPLITS}', which has all files, or in 'prepare' --split-parts."
_DIGITS = re.compile(r"[0-9]+")


class FolderSplits(NamedTuple):
    """The splits of a folder without an index.

    Attributes:
        files: split -> paths of its files; empty if there are none, or one that has all files.
        told_by: what says so, for messages.
        unfit: what declares splits of files that are not here, if anything does.
        choices: the configurations of which one must be named, as none is the default.
    """

    files: dict[str, list[str]]
    told_by: str = "the names of its files"
    choices: tuple[str, ...] = ()
    unfit: str = ""

    def __str__(self) -> str:
        counts = ", ".join(f"{split} {len(files):,}" for split, files in self.files.items())
        return f"it has splits by {self.told_by} ({counts})"


def folder_splits(store: Store, suffixes: Sequence[str]) -> FolderSplits:
    """Return the splits of the files with these suffixes. Raises as `declared_splits`."""
    paths = [entry.path for entry in store.files(suffixes=(*suffixes, *CARDS))]
    cards = [path for path in CARDS if path in paths]
    return splits_among(store, [path for path in paths if path.endswith(tuple(suffixes))], cards)


def splits_among(store: Store, paths: Sequence[str], cards: Sequence[str] = CARDS) -> FolderSplits:
    """Return the splits of some files of a folder. Raises as `declared_splits`.

    Args:
        cards: names of the cards that the folder may have.
    """
    splits = declared_splits(store, paths, cards) if cards else None
    if splits is None:
        return FolderSplits(splits_in(paths))
    if not splits.files:
        return FolderSplits(splits_in(paths), unfit=splits.told_by)
    return splits._replace(files={}) if _is_all(splits.files, paths) else splits


def declared_splits(store: Store, paths: Sequence[str], cards: Sequence[str] = CARDS) -> FolderSplits | None:
    """Return the splits of files that the card of their folder declares; None if it declares none.

    Raises:
        ConfigError: the card is no YAML, or its configurations have another form than the Hub's.
    """
    configs: dict[str, dict[str, Any]] = {}
    card = cards[0]
    for name in cards:  # what the second has replaces what the first has
        if store.exists(name):
            configs, card = _configs(store, name) or configs, name
    default = [name for name, one in configs.items() if len(configs) == 1 or name == "default" or one.get("default")]
    if len(default) > 1:
        raise _malformed(f"it has several default configurations, {', '.join(default)}", store.locate(card))
    files: dict[str, list[str]] = {}
    for name in sorted(configs, key=lambda name: name not in default):
        for split, chosen in _declared(configs[name], paths).items():
            if chosen:
                files[split if name in default else f"{name}/{split}"] = chosen
    return FolderSplits(files, f"the head of its {card}", () if default else tuple(configs)) if configs else None


def _configs(store: Store, card: str) -> dict[str, dict[str, Any]]:
    """Return the configurations that a card declares, by name; empty if it declares none."""
    where, size = store.locate(card), store.stat(card).size
    of_card = card.endswith(".md")  # whose images can be part of its text, which no one reads here
    data = store.read(card, 0, min(size, _LARGEST)) if of_card else store.read_small(card, _LARGEST)
    text = data.decode("utf-8-sig", "replace")
    if of_card:
        head = re.match(r"---[ \t]*\r?\n(.*?\n)?---[ \t]*(\r?\n|$)", text, re.DOTALL)
        if head is None and re.match(r"---[ \t]*\r?\n", text):
            refuse_large(size, where, _LARGEST)  # its head can end later
        text = (head[1] or "") if head else ""
    if "configs" not in text:
        return {}
    from feedmill.formats.yamls import read_settings

    settings = read_settings(text, where)
    configs = settings.get("configs") if isinstance(settings, dict) else None
    if not configs:
        return {}
    if not isinstance(configs, list) or not all(isinstance(one, dict) and "config_name" in one for one in configs):
        raise _malformed("its configs are no list of mappings with config_name", where)
    for one in configs:
        given = one.get("data_files")
        entries = given if isinstance(given, list) else [] if given is None else [given]
        if not all(
            isinstance(entry, str)
            or (isinstance(entry, dict) and set(entry) == {"split", "path"} and _are_texts(entry["path"]))
            for entry in [*entries, one.get("data_dir") or ""]
        ):
            raise _malformed(f"the files of its configuration {one['config_name']} are no patterns of splits", where)
    return {str(one["config_name"]): one for one in configs}


def _are_texts(value: object) -> bool:
    return all(isinstance(one, str) for one in (value if isinstance(value, list) else [value]))


def _malformed(what: str, where: str) -> ConfigError:
    return ConfigError(what, file=where, kind="bad-config", fix=f"Correct it as the Hub has it, or {_EVERYTHING}")


def _declared(config: Mapping[str, Any], paths: Sequence[str]) -> dict[str, list[str]]:
    """Return the files of each split of one configuration, in the order of its patterns, then of their names."""
    top = f"{config.get('data_dir') or ''}".removeprefix("./").strip("/")
    top = f"{top}/" if top else ""
    entries = config.get("data_files")
    if entries is None:
        return by_split([path for path in paths if path.startswith(top)], lambda path: path[len(top) :])
    patterns: dict[str, list[str]] = {}
    for entry in entries if isinstance(entries, list) else [entries]:
        split, given = (str(entry["split"]), entry["path"]) if isinstance(entry, dict) else ("train", entry)
        patterns.setdefault(split, []).extend(given if isinstance(given, list) else [given])
    return {
        split: list(
            dict.fromkeys(
                path
                for form in ((top + pattern.removeprefix("./")).split("/") for pattern in given)
                for path in sorted(paths)
                if _fits(path, form)
            )
        )
        for split, given in patterns.items()
    }


def _fits(path: str, pattern: Sequence[str]) -> bool:
    """Return whether the folders and name of a path fit a pattern: ``**`` is any number of folders, ``*`` is in one.

    The time does not grow with the number of ways to fit: patterns come with the data.
    """
    steps = path.split("/")
    places = {0}  # numbers of steps that the pattern so far can have taken
    for number, wanted in enumerate(pattern, 1):
        if wanted == "**":
            places = set(range(min(places) + (number == len(pattern)), len(steps) + 1))
        else:
            places = {at + 1 for at in places if at < len(steps) and fnmatchcase(steps[at], wanted)}
        if not places:
            return False
    return len(steps) in places


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
    return {} if _is_all(found, paths) else found


def _is_all(splits: Mapping[str, Sequence[str]], paths: Sequence[str]) -> bool:
    return len(splits) == 1 and len(next(iter(splits.values()))) == len(paths)


def unknown_split(url: str, split: str, splits: FolderSplits, fix: str = "Name one of these.") -> NotFound:
    """Return the error for a split that a folder does not have."""
    there = f"there are {', '.join(splits.files)}" if splits.files else "there are none"
    if splits.choices:
        there += f", of the configurations {', '.join(splits.choices)}, and none is the default"
    return NotFound(
        f"there is no split {split!r}: by {splits.told_by}, {there}",
        file=url,
        kind="no-such-split",
        fix=fix if splits.files else "Open it without a split.",
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
