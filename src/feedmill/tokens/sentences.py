"""Split texts into sentences as Megatron-LM does: with Punkt of NLTK, from its parameters as text files.

The parameters of a language are a folder of NLTK's `punkt_tab` with four files, in UTF-8::

    abbrev_types.txt, sent_starters.txt     a word in each line
    collocations.tab                        two words
    ortho_context.tab                       a word and a number

The older `punkt` is a pickle, which is never read: data never runs code. Punkt: Kiss & Strunk, "Unsupervised
multilingual sentence boundary detection", 2006.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from feedmill.errors import ConfigError, DataError, MissingExtra, NotFound
from feedmill.formats.tokens.base import Int64s

FILES = ("abbrev_types.txt", "sent_starters.txt", "collocations.tab", "ortho_context.tab")
BLOCK = 1_000_000
"""Characters that Megatron-LM splits at once; a sentence ends at the end of a block."""
_LARGEST = 64 << 20
"""Bytes of a file of parameters; those of NLTK have 1 MB at most."""
_WITH_SPACE = r"\S*%(SentEndChars)s\s*(?=(?P<after_tok>%(NonWord)s|(?P<next_tok>\S+)))"
"""Context of the end of a sentence to which the white space after it belongs, in the terms of NLTK."""


@dataclass(frozen=True, slots=True)
class Sentences:
    """How texts are split.

    Attributes:
        folder: the parameters of the language.
        identity: hash of its files, and the version of NLTK.
        keep_newlines: whether the white space after a sentence belongs to it; otherwise it is dropped.
    """

    folder: str
    identity: str
    keep_newlines: bool = False


def find_sentences(language: str, folder: str | None = None, *, keep_newlines: bool = False) -> Sentences:
    """Return how texts of a language are split.

    Args:
        language: name of the parameters, such as ``english``.
        folder: the parameters; or a folder of languages, or of NLTK's data; default: the folders in the environment
            variable ``NLTK_DATA``, then ``nltk_data`` in the home folder.
        keep_newlines: as for `Sentences`.

    Raises:
        ConfigError: the language is not a name, or only the pickle of the older `punkt` exists.
        DataError: a file of the parameters is invalid.
        MissingExtra: NLTK is not installed.
        NotFound: there are no parameters.
    """
    if not re.fullmatch(r"\w[\w-]*", language):
        raise ConfigError(f"--lang {language} is not a language", kind="bad-option", fix="Use english, for example.")
    known = os.environ.get("NLTK_DATA", "").split(os.pathsep) if folder is None else [folder]
    tops = [Path(top) for top in known if top] or [Path.home() / "nltk_data"]
    places = [top / below / language for top in tops for below in ("tokenizers/punkt_tab", "punkt_tab", "")]
    places = places if folder is None else [Path(folder), *reversed(places)]
    for place in places:
        if all((place / name).is_file() for name in FILES):
            _parameters(str(place))  # so that invalid files are reported before the run
            return Sentences(str(place.absolute()), _identity(place), keep_newlines)
    where = ", ".join(map(str, tops))
    fix = "Download punkt_tab of NLTK on a machine with network, and pass --punkt FOLDER, or set NLTK_DATA."
    for top in tops:
        for old in (top / "tokenizers" / "punkt" / f"{language}.pickle", top / f"{language}.pickle"):
            if old.exists():
                what = "this is a pickle of the older punkt, and data never runs code"
                raise ConfigError(what, file=str(old), kind="unsafe-pickle", fix=fix)
    raise NotFound(f"there are no parameters of punkt_tab for {language!r}", file=where, kind="not-found", fix=fix)


def split_sentences(texts: list[str], how: Sentences) -> tuple[list[str], Int64s]:
    """Return the sentences of all texts, and int64[texts], the number of sentences of each."""
    tokenize = _splitter(how.folder, how.identity, how.keep_newlines)
    counts, found = np.zeros(len(texts), np.int64), list[str]()
    for number, text in enumerate(texts):
        before = len(found)
        for begin in range(0, len(text), BLOCK):
            found.extend(tokenize(text[begin : begin + BLOCK]))
        counts[number] = len(found) - before
    return found, counts


def _punkt() -> Any:
    try:
        from nltk.tokenize import punkt
    except ImportError:
        raise MissingExtra("--split-sentences needs NLTK", extra="tokenize") from None
    return punkt


def _identity(folder: Path) -> str:
    digest = xxhash.xxh3_128()
    for name in FILES:
        digest.update(name.encode())
        digest.update((folder / name).read_bytes())
    _punkt()
    from nltk import __version__

    return f"{digest.hexdigest()} nltk {__version__}"


@lru_cache(maxsize=4)
def _splitter(folder: str, identity: str, keep_newlines: bool) -> Callable[[str], list[str]]:
    punkt = _punkt()
    if _identity(Path(folder)) != identity:
        raise ConfigError(
            "the parameters of punkt_tab changed while they were in use, or this machine has another NLTK",
            file=folder,
            kind="changed",
            fix="Run the command again, with one version of NLTK on all machines.",
        )
    variables = punkt.PunktLanguageVars()
    if keep_newlines:
        variables = type("_Variables", (punkt.PunktLanguageVars,), {"_period_context_fmt": _WITH_SPACE})()
    parameters = punkt.PunktParameters()
    for name, value in _parameters(folder).items():
        setattr(parameters, name, value)
    tokenizer = punkt.PunktSentenceTokenizer(parameters, lang_vars=variables)
    found: Callable[[str], list[str]] = tokenizer.tokenize
    return found


def _parameters(folder: str) -> dict[str, Any]:
    """Return the values of the files by their names in NLTK. Raises DataError."""
    words = {name: {line for _, line in _lines(folder, name)} for name in FILES[:2]}
    pairs = {tuple(fields) for _, fields in _fields(folder, FILES[2])}
    contexts: dict[str, int] = defaultdict(int)
    for number, (word, flags) in _fields(folder, FILES[3]):
        if not re.fullmatch(r"[0-9]{1,9}", flags):
            raise _invalid(folder, FILES[3], number, f"{flags[:40]!r} is not a number")
        contexts[word] = int(flags)
    return {
        "abbrev_types": words[FILES[0]],
        "sent_starters": words[FILES[1]],
        "collocations": pairs,
        "ortho_context": contexts,
    }


def _fields(folder: str, name: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in _lines(folder, name):
        fields = line.split("\t")
        if len(fields) != 2:
            raise _invalid(folder, name, number, f"{len(fields)} columns, expected 2")
        yield number, fields


def _lines(folder: str, name: str) -> Iterator[tuple[int, str]]:
    path = Path(folder) / name
    if path.stat().st_size > _LARGEST:
        raise _invalid(folder, name, 0, f"more than {_LARGEST >> 20} MB")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(folder, name, 0, f"not UTF-8 at byte {error.start}") from None
    lines = text.split("\n")
    yield from enumerate(lines[:-1] if lines[-1] == "" else lines, 1)


def _invalid(folder: str, name: str, line: int, what: str) -> DataError:
    return DataError(
        f"this is not a file of punkt_tab: {what}",
        file=os.path.join(folder, name),
        record=f"line {line}" if line else None,
        kind="bad-data",
        fix="Download punkt_tab of NLTK again.",
    )
