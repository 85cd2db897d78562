"""Decide which release of transformers is followed for a ``tokenizer.json`` with settings next to it.

Releases 4 and 5 of `AutoTokenizer` read one folder differently (`settings` and `template` follow 4.57, `five` 5.24). If
both give the same ids, there is nothing to decide. Otherwise the user must: the model was trained with one of them
(``findings/transformers_4_and_5_tokenizers.sh``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import xxhash

from feedmill.errors import ConfigError
from feedmill.tokens.engines import HuggingFace, Vocabulary
from feedmill.tokens.kinds.five import RELEASE, as_five
from feedmill.tokens.kinds.kept import kept
from feedmill.tokens.kinds.keys import check_keys
from feedmill.tokens.kinds.settings import FLAGS, applied
from feedmill.tokens.selfcheck import CHECK, differences
from feedmill.tokens.template import CONFIG, Template, TemplateSource, read_settings, resolve, tokens_around

FOUR, FIVE = "transformers4", "transformers5"
_FILES = (CONFIG, "config.json", "special_tokens_map.json", "added_tokens.json")


class Read(NamedTuple):
    """A ``tokenizer.json`` as it is read.

    Attributes:
        document: its content, with the settings applied.
        changes: what they changed, and which release is followed if the releases differ.
        five: whether its own template counts, as in release 5.
    """

    document: dict[str, Any]
    changes: list[str]
    five: bool


def read_as(path: Path, vocabulary: Vocabulary, source: TemplateSource) -> Read:
    """Return a ``tokenizer.json`` as `AutoTokenizer` reads it.

    Args:
        path, vocabulary: the file and its vocabulary, with its content.
        source: ``transformers4`` or ``transformers5`` for one release, ``flags`` for the settings of release 4,
            ``auto`` if both are alike or only one of them can read the settings; ``class`` is ``auto``, but what goes
            around a text does not count.

    Raises:
        ConfigError: the releases differ; or the settings are corrupt, contradictory or of an unknown kind.
    """
    folder, ids, document = path.parent, vocabulary.ids, vocabulary.document or {}
    written = {token: number for token, (number, _) in vocabulary.renumbered.items()}
    if not any((folder / name).is_file() for name in _FILES):
        return Read(document, [], False)
    settings = read_settings(folder / CONFIG)
    notes = check_keys(settings, folder)
    four = None if source == FIVE else Read(*applied(document, folder), False)
    if source in (FOUR, "flags"):
        assert four is not None
        return four._replace(changes=[*four.changes, *([] if source == "flags" else ["as transformers 4.57"]), *notes])
    found, name = as_five(document, folder, written)
    readable = _four_can(settings, read_settings(folder / "config.json"))
    if found is None:
        if four is None or not readable:
            raise unknown_class(folder, name)
        note = f"class {name} as transformers 4.57 ({RELEASE} builds it again, and was not compared)"
        return four._replace(changes=[*four.changes, note, *notes])
    five = Read(found, [*_changes(document, found), f"as transformers {RELEASE}", *notes], True)
    if four is None or not readable:
        return five
    own = tokens_around(found)
    around = own if source == "class" else resolve(path, four.document, _ids(four.document, ids), "auto")
    what = _around(around, own) or _difference(path, four.document, found)
    if what is None:
        return four._replace(changes=[*four.changes, *notes])
    raise ConfigError(
        f"transformers 4.57 and {RELEASE} read this tokenizer differently: {what}",
        file=str(folder),
        kind="undecided-template",
        fix=f"Pass --template-source {FIVE} or --template-source {FOUR}, whichever the model is trained with, or"
        " --template-source file to use tokenizer.json alone (in Python template_source=...).",
    )


def _ids(document: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, int]:
    return dict(ids) | {token["content"]: token["id"] for token in document.get("added_tokens") or ()}


def _four_can(settings: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Return whether release 4 can read a folder: it needs a class, and no list of extra tokens."""
    name = settings.get("tokenizer_class") or config.get("tokenizer_class")
    known = name not in (None, "TokenizersBackend", "PythonBackend") or config.get("model_type") is not None
    return known and not isinstance(settings.get("extra_special_tokens"), list)


def _around(four: Template | None, five: Template) -> str | None:
    """Return how two templates differ; None if they are alike."""
    if (((), ()) if four is None else four[:2]) == five[:2]:
        return None
    ends = [() if each is None else each.names[0] + each.names[1] for each in (four, five)]
    one, two = (" ".join(end) or "nothing" for end in ends)
    return f"around a text, the first adds {one}, the other {two}"


def _difference(path: Path, four: dict[str, Any], five: dict[str, Any]) -> str | None:
    """Return how the ids of two documents differ; None if they are alike."""
    if _parts(four) == _parts(five):
        return None
    texts = [orjson.dumps(document | {"post_processor": None}) for document in (four, five)]
    added = {str(token): token for document in (four, five) for token in document.get("added_tokens") or ()}

    def wrong() -> bytes:
        engines = [HuggingFace(path, text) for text in texts]
        return orjson.dumps(differences(engines[0], engines[1], added=list(added.values()))[:1])

    found = orjson.loads(kept(f"releases {[*map(xxhash.xxh3_128_hexdigest, texts)]} {CHECK}", wrong))
    return f"their ids differ, e.g. for {found[0]!r:.80}" if found else None


def _parts(document: Mapping[str, Any]) -> list[Any]:
    """Return what decides the ids, but for the vocabulary, which both releases take from the file."""
    model = {key: value or None for key, value in document["model"].items() if key not in ("vocab", "merges")}
    return [
        {key: value for key, value in model.items() if value is not None},
        document.get("normalizer"),
        _without_offsets(document.get("pre_tokenizer")),
        sorted(_token(token) for token in document.get("added_tokens") or ()),
    ]


def _without_offsets(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _without_offsets(value) for key, value in part.items() if key != "trim_offsets"}
    return [*map(_without_offsets, part)] if isinstance(part, list) else part


def _token(token: Mapping[str, Any]) -> tuple[Any, ...]:
    return (token["id"], token["content"], *(bool(token.get(flag)) for flag in FLAGS))


def _changes(document: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    had = {_token(token)[1:] for token in document.get("added_tokens") or ()}
    names = {token[0] for token in had}
    new = [_token(token) for token in found["added_tokens"] or () if _token(token)[1:] not in had]
    return [f"{'flags of' if token[1] in names else 'token'} {token[1]!r}" for token in new]


def unknown_class(folder: Path, name: str) -> ConfigError:
    """Return the error that release 5 cannot be followed for a class."""
    return ConfigError(
        f"how transformers {RELEASE} builds the class {name} is not known",
        file=str(folder),
        kind="undecided-template",
        fix="AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW) of that release writes a tokenizer.json; use it"
        " with --template-source file.",
    )
