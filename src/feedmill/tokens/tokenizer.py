"""Tokenizers: encode text to ids and decode ids, with the fastest engine whose ids equal the reference's.

A tokenizer is a ``tokenizer.json`` (or its folder), or a SentencePiece ``.model``; nothing is ever
downloaded. Three engines share one interface:

    fastokens       about 40 times faster than the reference; used if it loads the file and passes the self-check
    hf              Hugging Face `tokenizers`: the reference, and the fallback if fastokens cannot be used
    sentencepiece   for ``.model`` files
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import ConfigError, FeedmillError, MissingExtra, NotFound
from feedmill.formats.tokens.base import Int64s
from feedmill.formats.tokens.manifest import TokenizerFacts
from feedmill.tokens import engines
from feedmill.tokens.engines import Encoded, TokenizerEngine, Uint32s, Vocabulary
from feedmill.tokens.preload import load_ahead
from feedmill.tokens.selfcheck import differences
from feedmill.tokens.template import Template, TemplateSource, around, resolve

Backend = Literal["auto", "fastokens", "hf", "sentencepiece"]

BACKENDS = ("auto", "fastokens", "hf", "sentencepiece")
_PACKAGES = {"fastokens": "fastokens", "hf": "tokenizers", "sentencepiece": "sentencepiece"}
_RANK = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")
_CONVERT = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW) of transformers writes a tokenizer.json."
_SLOW = (("vocab.json", "merges.txt"), ("vocab.txt",), ("spiece.model",), ("sentencepiece.bpe.model",))


class Tokenizer:
    """A tokenizer loaded from this machine; created by `load_tokenizer`.

    Attributes:
        name: path as given.
        path: the model file.
        backend: the engine that encodes.
        fallback: why the fast engine is not used, unless the user excluded it; otherwise None.
        hash: xxh3-128 of the model file, in hex.
        vocab_size: number of entries with added tokens; `base_vocab_size`: without them.
        size: the largest id plus 1.
        template: whether the tokenizer's own template (BOS, EOS ...) is applied to each text.
        around: the template; None if the tokenizer has none. `template_source`: see `load_tokenizer`.
        switched_off: settings of the model that would make ids random, with their values; they are disabled.
        ordinary: whether special tokens that occur in a text are encoded as plain text.
        declared_eos, declared_bos: EOS and BOS defined in the files next to the model; None if undefined.
        unknown: id of what the model cannot encode; None if it can encode everything.
    """

    def __init__(
        self, engine: TokenizerEngine, vocabulary: Vocabulary, *, name: str, path: Path, backend: Backend, hash: str
    ) -> None:
        self._engine, self._vocabulary = engine, vocabulary
        self.name, self.path, self.backend, self.hash = name, path, backend, hash
        self.fallback: str | None = None
        self.template, self.ordinary = True, False
        self.around: Template | None = None
        self.template_source: TemplateSource = "auto"
        self.switched_off: dict[str, Any] = {}
        self.vocab_size, self.base_vocab_size = vocabulary.size_with_added, vocabulary.size_without_added
        self.size = vocabulary.largest + 1
        self.declared_bos, self.declared_eos = vocabulary.bos, vocabulary.eos
        self.unknown = vocabulary.unknown

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of many texts; see `Encoded`. Raises UnicodeEncodeError for lone surrogates."""
        template = self.around if self.template else None
        found = self._engine.encode(list(texts), template is not None and template.own, self.ordinary)
        return found if template is None or template.own else Encoded(*around(*found, template))

    def decode(self, ids: Sequence[int] | npt.NDArray[Any], *, skip_special: bool = False) -> str:
        """Return the text of ids. Ids that the vocabulary does not have are skipped."""
        return self._engine.decode([int(i) for i in ids], skip_special)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token, written as in the vocabulary; None if there is none."""
        return self._vocabulary.ids.get(token)

    def require(self, token: str, what: str = "token") -> int:
        """Return the id of a required token. Raises ConfigError that suggests similar tokens if it is missing."""
        found = self.token_to_id(token)
        if found is not None:
            return found
        close = self._vocabulary.close_to(token)
        raise ConfigError(
            f"the tokenizer has no {what} {token!r}",
            file=str(self.path),
            kind="unknown-token",
            fix=f"Did you mean {' or '.join(map(repr, close))}?" if close else "Use a token of its vocabulary.",
        )

    def special_tokens(self) -> dict[str, int]:
        """Return the added special tokens."""
        return dict(self._vocabulary.special)

    def versions(self) -> dict[str, str]:
        """Return the packages that determine the ids, with their versions."""
        package = _PACKAGES[self.backend]
        return {package: _version(package)}

    def facts(self) -> TokenizerFacts:
        """Return the facts about the tokenizer that a manifest stores."""
        return TokenizerFacts(self.name, self.hash, self.vocab_size, self.backend, self.versions())

    def offsets(self, text: str) -> tuple[Uint32s, Int64s]:
        """Return the ids of a text, and the characters that each token covers, int64[n, 2]. Always uses the reference.

        Raises:
            ConfigError: the backend is SentencePiece, for which offsets are not supported.
        """
        engine = self._with_offsets()
        template = self.around if self.template else None
        ids, places = engine.offsets(text, template is not None and template.own, self.ordinary)
        if template is None or template.own:
            return ids, places
        head, tail = (np.zeros((len(tokens), 2), np.int64) for tokens in (template.before, template.after))
        return around(ids, np.array([len(ids)]), template)[0], np.concatenate((head, places, tail))

    def masked(
        self, texts: Sequence[str], spans: Sequence[Sequence[tuple[int, int]] | None]
    ) -> list[tuple[Uint32s, npt.NDArray[np.bool_] | None]]:
        """Return the ids of texts without the template, and which tokens have a character of the spans of each text.

        Args:
            texts: the texts.
            spans: for each text, ranges of characters; None if all tokens count.

        Raises:
            ConfigError: as `offsets`.
        """
        return self._with_offsets().masked(list(texts), spans, self.ordinary)

    def _with_offsets(self) -> engines.HuggingFace:
        if self.backend == "sentencepiece":
            raise ConfigError("loss masks require a tokenizer.json", file=str(self.path), kind="no-offsets")
        engine = self._engine
        if not isinstance(engine, engines.HuggingFace):
            engine = self._reference = getattr(self, "_reference", None) or engines.HuggingFace(self.path)
        return engine


def load_tokenizer(
    name: str | os.PathLike[str],
    backend: Backend = "auto",
    *,
    check: bool = True,
    template_source: TemplateSource = "auto",
) -> Tokenizer:
    """Load a tokenizer from this machine; nothing is downloaded.

    Args:
        name: a folder with ``tokenizer.json`` (or ``tokenizer.model``), the file itself, or a SentencePiece ``.model``.
        backend: ``auto`` uses fastokens if it loads the file and its ids equal the reference's (see
            `feedmill.tokens.selfcheck`), and Hugging Face `tokenizers` otherwise. Any other value forces that engine.
        check: compare the fast engine with the reference first. Pass False only for a file that was just compared.
        template_source: source of the template: ``file`` for only the model file, ``flags`` for ``add_bos_token`` and
            ``add_eos_token`` in ``tokenizer_config.json`` next to it, ``auto`` for what transformers' ``AutoTokenizer``
            does, see `feedmill.tokens.template`.

    Raises:
        NotFound: the file does not exist; names of a model hub are not looked up.
        ConfigError: the file is not a tokenizer, the backend cannot read it, or the settings next to it contradict it.
        MissingExtra: a package is missing.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"unknown tokenizer backend {backend!r}", fix=f"Use one of {', '.join(BACKENDS)}.")
    given = os.fspath(name)
    path = _find(given)
    data = path.read_bytes()
    digest = xxhash.xxh3_128_hexdigest(data)
    _refuse_others(path, data)
    pieces = _is_sentencepiece(path, data)
    if pieces != (backend == "sentencepiece") and (pieces or backend == "sentencepiece") and backend != "auto":
        kind = "a SentencePiece model" if pieces else "a tokenizer.json"
        raise ConfigError(f"this is {kind}, which the backend {backend!r} cannot read", file=str(path))
    if not pieces and backend != "hf":
        load_ahead(path)

    if pieces:
        loaded = engines.SentencePiece(path)
        made = Tokenizer(loaded, loaded.vocabulary, name=given, path=path, backend="sentencepiece", hash=digest)
        made.around = resolve(path, None, loaded.vocabulary.ids, template_source)
        made.template, made.template_source = made.around is not None, template_source
        return made
    vocabulary = engines.read_vocabulary(path, data)
    switched_off = engines.random_settings(vocabulary.document or {})
    fast, fallback = (None, None) if backend == "hf" else _fast(path, backend == "fastokens", check, switched_off)
    engine: TokenizerEngine = fast or engines.HuggingFace(path)
    made = Tokenizer(engine, vocabulary, name=given, path=path, backend="fastokens" if fast else "hf", hash=digest)
    made.fallback, made.template_source, made.switched_off = fallback, template_source, switched_off
    if vocabulary.document is not None:
        made.around = resolve(path, vocabulary.document, vocabulary.ids, template_source)
        vocabulary.document = None  # it is large, and no longer needed
    return made


def _fast(
    path: Path, forced: bool, check: bool, switched_off: Mapping[str, Any]
) -> tuple[TokenizerEngine | None, str | None]:
    """Return the fast engine, or the reason it is not used. Raises if it was requested by name and cannot be used."""

    if switched_off:
        what = f"fastokens cannot disable the {' and '.join(switched_off)} of the file"
        if forced:
            raise ConfigError(what, file=str(path), kind="random-ids", fix="Use --tokenizer-backend hf.")
        return None, what
    reference = None
    if check:
        with contextlib.suppress(MissingExtra):  # a minimal installation has nothing to compare with
            reference = engines.HuggingFace(path)
    try:
        engine = engines.Fastokens(path)
    except FeedmillError as error:
        if forced:
            raise
        return None, error.what
    if reference is None:
        return engine, None

    wrong = differences(engine, reference)
    if not wrong:
        return engine, None
    what = f"fastokens and tokenizers differ on {len(wrong)} of the self-check's texts, e.g. {wrong[0]!r}"
    if forced:
        raise ConfigError(what, file=str(path), kind="self-check", fix="Use --tokenizer-backend hf.")
    return None, what


def _find(given: str) -> Path:
    path = Path(given)
    if path.is_dir():
        for name in ("tokenizer.json", "tokenizer.model"):
            if (path / name).is_file():
                return path / name
        versions = sorted(path.glob("tokenizer.model.v*"))  # Mistral's names of SentencePiece models
        if len(versions) == 1:
            return versions[0]
        _refuse_folder(path)
        raise NotFound("the folder has no tokenizer.json", file=given, fix="Pass the tokenizer's own folder or file.")
    if not path.is_file():
        raise NotFound(
            "the tokenizer does not exist on this machine",
            file=given,
            kind="no-tokenizer",
            fix="Give a tokenizer.json, the folder it lies in, or a SentencePiece .model; names of a model hub are not"
            " looked up: download it first.",
        )
    return path


def _is_sentencepiece(path: Path, data: bytes) -> bool:
    """Return whether a file is a SentencePiece model, by its name (``.model``, ``.model.v3``) and its first bytes."""
    named = path.suffix == ".model" or ".model." in path.name
    return named and not _RANK.match(data)


def _refuse_others(path: Path, data: bytes) -> None:
    """Raise ConfigError for the tokenizer files of other programs, with what they are and how to convert them."""
    start = data[: 1 << 16].lstrip()
    if _RANK.match(start):
        raise _other(
            path,
            "a tiktoken file (tokens in base64 with their ranks), which does not define how texts are split",
            "Use the tokenizer.json of the model's repository, or convert it: TikTokenConverter of transformers"
            " (convert_slow_tokenizer) takes the file and its pattern.",
        )
    if b'"token_bytes"' in start and b'"rank"' in start:
        raise _other(
            path,
            "Mistral's tekken.json",
            "Use the tokenizer.json of the model's repository, or convert it with transformers"
            " (integrations.mistral.convert_tekken_tokenizer).",
        )


def _refuse_folder(folder: Path) -> None:
    """Raise ConfigError for a folder with a tokenizer of another kind."""
    for names in _SLOW:
        if all((folder / name).is_file() for name in names):
            raise _other(folder, f"a tokenizer in another program's files ({', '.join(names)})", _CONVERT)
    for path in sorted(folder.iterdir()):
        if path.suffix == ".tiktoken" or path.name == "tekken.json":
            with path.open("rb") as file:
                _refuse_others(path, file.read(1 << 16))


def _other(path: Path, what: str, fix: str) -> ConfigError:
    return ConfigError(
        f"expected a tokenizer.json or a SentencePiece .model, found {what}",
        file=str(path),
        kind="other-tokenizer-kind",
        fix=fix,
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
