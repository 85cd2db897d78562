"""Find the file of a tokenizer, of any kind, and read it as what engines load: a ``tokenizer.json``, and a reference.

Nothing is downloaded. A name such as ``org/name`` is looked for in the cache that ``huggingface_hub`` fills
(``$HF_HUB_CACHE``, else ``$HF_HOME/hub``, else ``~/.cache/huggingface/hub``), at the revision ``main``.

kind            ``tokenizer.json``                                      reference
tokenizer.json  the file, with the settings next to it applied          `tokenizers`
vocab.json/.txt made from the files (`slow`), with the settings         `tokenizers`
tiktoken file   made from the ranks (`ranks`)                           `ranks.RankEngine`
tekken.json     made from the ranks                                     `ranks.RankEngine`
.model          made from the pieces (`pieces`), if they are BPE        SentencePiece
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import orjson
import xxhash

from feedmill.errors import ConfigError, NotFound
from feedmill.storage.limits import refuse_large
from feedmill.tokens.engines import HuggingFace, SentencePiece, TokenizerEngine, Vocabulary, read_vocabulary
from feedmill.tokens.kinds import pieces, ranks, slow
from feedmill.tokens.kinds.releases import FIVE, applied, kept, read_as, unknown_class
from feedmill.tokens.kinds.slow import token_of
from feedmill.tokens.template import CONFIG, TemplateSource, read_settings

Reference = Literal["hf", "ranks", "sentencepiece"]
_KINDS = ("tokenizer.json", "tekken.json", "tokenizer.model", *slow.FILES)
_UNSUPPORTED = ("spiece.model", "sentencepiece.bpe.model")
_T5 = ("t5", "mt5", "umt5", "longt5", "switch_transformers", "musicgen", "musicgen_melody", "pix2struct")
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_READS = (
    "tokenizer.json, a SentencePiece .model, a .tiktoken file, tekken.json, vocab.json with merges.txt, or vocab.txt"
)
_RANK = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")
_TEKKEN = (b'"token_bytes"', b'"rank"')


def find_tokenizer(given: str) -> Path:
    """Return the main file of a tokenizer.

    Raises:
        NotFound: there is none; the message names where it was looked for.
        ConfigError: a folder has only a tokenizer of an unsupported kind, or several.
    """
    path = Path(given)
    if path.is_file():
        return path
    if path.is_dir():
        return _in_folder(path)
    if not is_hub_name(given):
        raise NotFound(
            "the tokenizer does not exist on this machine",
            file=given,
            kind="no-tokenizer",
            fix=f"Give one of {_READS}, its folder, or the name of a model in the Hugging Face cache.",
        )
    cache = hub_cache()
    model = cache / f"models--{given.replace('/', '--')}"
    try:
        revision = (model / "refs/main").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise NotFound(
            "the tokenizer does not exist on this machine: it was looked for as a file or folder, and in the Hugging"
            f" Face cache as {model}",
            file=given,
            kind="no-tokenizer",
            fix="Names of a model hub are not looked up, and nothing is downloaded: download the model first, or set"
            " HF_HOME or HF_HUB_CACHE to the cache that has it.",
        ) from None
    snapshot = model / "snapshots" / revision
    if re.fullmatch(r"[0-9a-f]{7,64}", revision) is None or not snapshot.is_dir():
        raise NotFound(
            "the Hugging Face cache has no files of this revision", file=str(snapshot), fix="Download the model again."
        )
    return _in_folder(snapshot)


def is_hub_name(given: str) -> bool:
    """Return whether a name can be that of a model in the Hugging Face cache."""
    return _NAME.fullmatch(given) is not None


def hub_cache() -> Path:
    """Return the folder in which ``huggingface_hub`` stores models."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expandvars(os.path.expanduser(given or os.path.join(home, "hub"))))


def _in_folder(folder: Path) -> Path:
    for name in _KINDS:
        path = folder / name
        if path.is_file() and (name not in slow.FILES or _is_slow(path)):
            return path
    patterns = ("*.model.v*", "*.tiktoken", "tekken*.json", "*.model")
    named = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.name not in _UNSUPPORTED})
    if len(named) == 1:
        return named[0]
    if named:
        raise ConfigError(
            f"the folder has several tokenizers: {', '.join(path.name for path in named)}",
            file=str(folder),
            kind="ambiguous",
            fix="Pass one of the files.",
        )
    other = next((name for name in _UNSUPPORTED if (folder / name).is_file()), None)
    if other is not None:
        raise _changed_ids(folder, other)
    raise NotFound(
        f"the folder has no tokenizer: expected {_READS}",
        file=str(folder),
        kind="no-tokenizer",
        fix="Pass the tokenizer's own folder or file.",
    )


def _is_slow(path: Path) -> bool:
    """Return whether a file is the vocabulary of a folder that `slow` reads, and all files of the folder are there."""
    return path.name in slow.FILES and all((path.parent / name).is_file() for name in slow.FILES[path.name])


def _refuse_classes(path: Path) -> None:
    """Raise `ConfigError` for a SentencePiece model of the T5 class, whose ids are not those of the model alone."""
    config = read_settings(path.parent / "config.json")
    name = read_settings(path.parent / CONFIG).get("tokenizer_class") or config.get("tokenizer_class")
    kind = str(name).removesuffix("Fast").removesuffix("Tokenizer").lower() if name else config.get("model_type")
    if path.name in _UNSUPPORTED and kind in _T5:
        raise _changed_ids(path.parent, path.name)


def _changed_ids(folder: Path, name: str) -> ConfigError:
    return ConfigError(
        f"expected {_READS}; found {name}, whose ids the model's class in transformers changes",
        file=str(folder),
        kind="unsupported-tokenizer",
        fix=slow.CONVERT,
    )


@dataclass(slots=True)
class Model:
    """A tokenizer, before an engine loads it.

    Attributes:
        kind: what the file is, for messages.
        hash: xxh3-128 of everything that decides the ids but the settings: the file, and the pattern if one was given.
        vocabulary: its tokens.
        reference: the backend that defines the ids; `make_reference` loads it.
        text: its ``tokenizer.json``; None if there is none, and `why` says why. `own`: whether it is the file itself.
        settings: what `feedmill.tokens.kinds.releases` changed, and the pattern of a tiktoken file.
        plain: whether special tokens in a text are always plain text.
        five: whether a ``tokenizer.json`` is read as transformers 5 does, so that its own template counts.
        guarded: symbols that only the reference encodes.
        classes: whether it was made from the files of a class, which also say what goes around a text.
    """

    kind: str
    hash: str
    vocabulary: Vocabulary
    reference: Reference
    make_reference: Callable[[], TokenizerEngine]
    text: bytes | None
    why: str | None = None
    own: bool = False
    settings: list[str] = field(default_factory=list)
    plain: bool = False
    five: bool = False
    guarded: list[str] = field(default_factory=list)
    classes: bool = False


def read_model(path: Path, template_source: TemplateSource, pattern: str | None = None) -> Model:
    """Read a tokenizer.

    Args:
        path: its main file; see `find_tokenizer`.
        template_source: with ``file``, the settings next to a ``tokenizer.json`` are not applied. With ``class``, a
            SentencePiece model is read with special tokens, as its class in transformers does.
        pattern: of a tiktoken file: the name of an encoding, or a regular expression.

    Raises:
        ConfigError: the file is no tokenizer, corrupt, or of an unsupported kind; or the pattern is for another kind.
        DataError: it is larger than a tokenizer can be (kind ``too-large``).
        MissingExtra: sentencepiece is required.
    """
    refuse_large(path.stat().st_size, str(path))
    data = path.read_bytes()
    start = data[: 1 << 16].lstrip()
    tiktoken = _RANK.match(start) is not None
    if pattern is not None and not tiktoken:
        raise ConfigError(
            "a pattern was given, but this is not a tiktoken file", file=str(path), fix="Remove --tokenizer-pattern."
        )
    if tiktoken:
        found = ranks.read_tiktoken(path, data, pattern, _special(path.parent))
        return _of_ranks(path, found, "a tiktoken file", _digest(data, pattern, found.special if pattern else None))
    if path.suffix == ".json" and all(mark in start for mark in _TEKKEN):
        return _of_ranks(path, ranks.read_tekken(path, data), "a tekken.json", _digest(data))
    if is_pieces(path):
        _refuse_classes(path)
        if template_source == "class":
            return _of_files(path, pieces.as_class(path, data), "a SentencePiece model", template_source)
        return _of_pieces(path, data)
    if _is_slow(path):
        files = " and ".join(slow.FILES[path.name])
        model = _of_files(path, slow.document(path), f"a folder with {files}", template_source)
        model.classes = True
        return model
    return _of_json(path, data, template_source)


def is_pieces(path: Path) -> bool:
    """Return whether a file is a SentencePiece model, by its name; a tiktoken file can have the same one."""
    return path.suffix == ".model" or ".model." in path.name


def _of_json(path: Path, data: bytes, source: TemplateSource) -> Model:
    digest, vocabulary = _digest(data), read_vocabulary(path, data)
    changes: list[str] = []
    five, text = False, data
    if source != "file" and vocabulary.document is not None:
        given = vocabulary.document
        changed, changes, five = read_as(path, vocabulary, source)
        if changed != given:
            text, renumbered = orjson.dumps(changed), vocabulary.renumbered
            vocabulary = read_vocabulary(path, text)
            vocabulary.renumbered = renumbered
    for token, (written, number) in vocabulary.renumbered.items():
        changes.append(f"id of {token!r} {number}, not {written}")
    make = partial(HuggingFace, path, text)
    own = text is data
    return Model("a tokenizer.json", digest, vocabulary, "hf", make, text, None, own, changes, five=five)


def _of_files(path: Path, document: dict[str, Any], what: str, source: TemplateSource) -> Model:
    """Return the model of a folder whose class in transformers 4 is known."""
    if source == FIVE:
        raise unknown_class(path.parent, document["class"])
    changed, changes = applied(document, path.parent)
    text = orjson.dumps(changed)
    vocabulary = read_vocabulary(path, text)
    for role, end in (("bos_token", "bos"), ("eos_token", "eos")):
        token = token_of(document["tokens"].get(role))
        if getattr(vocabulary, end) is None and token in vocabulary.ids:
            setattr(vocabulary, end, token)
    kind = f"{what} ({document['class']})"
    settings = [
        f"class {document['class']} of transformers 4.57",
        *(change for change in changes if not change.startswith("token ")),
    ]
    return Model(kind, _digest(text), vocabulary, "hf", lambda: HuggingFace(path, text), text, settings=settings)


def _of_ranks(path: Path, found: ranks.Ranks, kind: str, digest: str) -> Model:
    text = kept(f"ranks {digest} {found.source}", lambda: ranks.document(found))
    settings = [] if found.source is None else [f"pattern {found.source}"]
    vocabulary = ranks.vocabulary(found)
    return Model(
        kind,
        digest,
        vocabulary,
        "ranks",
        lambda: ranks.RankEngine(path, found),
        text,
        settings=settings,
        plain=found.plain,
    )


def _of_pieces(path: Path, data: bytes) -> Model:
    engine = SentencePiece(path)
    digest = _digest(data)
    text = kept(f"pieces {digest}", lambda: _encoded(pieces.document(data)))
    why = None if text.startswith(b"{") else text.decode()
    made = None if why else text
    kind = "a SentencePiece model"
    guarded = pieces.user_defined(data) if made else []
    engine.vocabulary.added |= set(guarded)
    return Model(
        kind, digest, engine.vocabulary, "sentencepiece", lambda: engine, made, why, plain=True, guarded=guarded
    )


def _encoded(document: bytes | str) -> bytes:
    return document.encode() if isinstance(document, str) else document


def _digest(data: bytes, *more: Any) -> str:
    if any(value is not None for value in more):
        data += repr(more).encode()
    return xxhash.xxh3_128_hexdigest(data)


def _special(folder: Path) -> dict[str, int]:
    """Return the special tokens in the settings next to a tiktoken file."""
    listed = read_settings(folder / CONFIG).get("added_tokens_decoder")
    pairs: Sequence[tuple[str, Any]] = list(listed.items()) if isinstance(listed, dict) else []
    return {name: int(number) for number, token in pairs if number.isdigit() and (name := token_of(token)) is not None}
