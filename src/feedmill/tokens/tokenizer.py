"""Tokenizers: encode text to ids and decode ids, with the fastest engine whose ids equal the reference's.

A tokenizer is a file, its folder, or a model in the Hugging Face cache on this machine; nothing is ever downloaded. All
kinds of files are converted to a ``tokenizer.json`` (`feedmill.tokens.kinds`). Engines share one interface:

    fastokens       about 40 times faster than the reference; used if it loads the file and passes the self-check
    hf              Hugging Face `tokenizers`: the reference of most kinds
    sentencepiece   the reference of ``.model`` files
    ranks           the reference of tiktoken files and ``tekken.json``

Which tokens end and begin documents (`ends_of`): the values of `eos` and `bos` mean the same in Python, recipes and
commands. An ordinary word is refused, because it also occurs in texts, where it would look like an end:

    auto                            the token that the tokenizer's own files name
    none (null, false, ~, or None)  no token
    any other text                  a special token, or one that was added to the vocabulary
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from feedmill.errors import ConfigError, FeedmillError, MissingExtra
from feedmill.formats.tokens.base import Int64s
from feedmill.formats.tokens.manifest import TokenizerFacts
from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.tokenmarks import token_marks
from feedmill.tokens import engines
from feedmill.tokens.engines import CHECK, Encoded, TokenizerEngine, Uint32s, cut_twice, differences
from feedmill.tokens.kinds import ranks
from feedmill.tokens.kinds.model import Model, find_tokenizer, read_model
from feedmill.tokens.kinds.pieces import Guarded
from feedmill.tokens.kinds.releases import kept
from feedmill.tokens.preload import load_ahead
from feedmill.tokens.template import CONFIG, Template, TemplateSource, around, read_settings, resolve

Backend = Literal["auto", "fastokens", "hf", "sentencepiece", "ranks"]

BACKENDS = ("auto", "fastokens", "hf", "sentencepiece", "ranks")
_PACKAGES = {"fastokens": "fastokens", "hf": "tokenizers", "sentencepiece": "sentencepiece", "ranks": "regex"}


class Tokenizer:
    """A tokenizer loaded from this machine; created by `load_tokenizer`.

    Attributes:
        name: path as given.
        path: the model file; `kind`: what it is; `reference`: the backend that defines its ids.
        backend: the engine that encodes.
        fallback: why the fast engine is not used, unless the user excluded it; otherwise None.
        hash: xxh3-128 of the model file (with the pattern, if one was given), in hex.
        vocab_size: number of entries with added tokens; `base_vocab_size`: without them.
        size: the largest id plus 1.
        template: whether the tokenizer's own template (BOS, EOS ...) is applied to each text.
        around: the template; None if the tokenizer has none. `template_source`: see `load_tokenizer`.
        settings: what the settings next to the file changed, and the pattern of a tiktoken file; as texts.
        pattern: see `load_tokenizer`.
        switched_off: settings of the model that would make ids random, with their values; they are disabled.
        ordinary: whether special tokens that occur in a text are encoded as plain text.
        declared_eos, declared_bos: EOS and BOS defined in the files next to the model; None if undefined.
        unknown: id of what the model cannot encode; None if it can encode everything.
    """

    def __init__(self, engine: TokenizerEngine, model: Model, *, name: str, path: Path, backend: Backend) -> None:
        self._engine, self._model, self._vocabulary = engine, model, model.vocabulary
        self.name, self.path, self.backend = name, path, backend
        self._given = os.path.abspath(name) if os.path.exists(name) else ""  # here: the working folder can change
        self.kind, self.reference, self.hash, self.settings = model.kind, model.reference, model.hash, model.settings
        self.pattern: str | None = None
        self.fallback: str | None = None
        self._offsets: Any = None
        self.template, self.ordinary = True, False
        self.around: Template | None = None
        self.template_source: TemplateSource = "auto"
        self.switched_off: dict[str, Any] = {}
        vocabulary = model.vocabulary
        self.vocab_size, self.base_vocab_size = vocabulary.size_with_added, vocabulary.size_without_added
        self.size = vocabulary.largest + 1
        self.declared_bos, self.declared_eos = vocabulary.bos, vocabulary.eos
        self.unknown = vocabulary.unknown

    def encode(self, texts: Sequence[str], *, placed: bool = False) -> Encoded:
        """Return the ids of many texts; see `Encoded`. Raises UnicodeEncodeError for lone surrogates.

        Args:
            texts: the texts.
            placed: whether to return the ids that `offsets` returns, also where only the reference has others: for
                symbols that users defined in a SentencePiece model.
        """
        template = self.around if self.template else None
        ordinary = self.ordinary or self._model.plain
        engine = self._with_offsets() if placed and self._model.guarded else self._engine
        found = engine.encode(list(texts), template is not None and template.own, ordinary)
        return found if template is None or template.own else Encoded(*around(found.ids, found.lengths, template))

    def decode(self, ids: Sequence[int] | npt.NDArray[Any], *, skip_special: bool = False) -> str:
        """Return the text of ids. Ids that the vocabulary does not have are skipped."""
        engine = self._engine if self.reference == "hf" else self._model.make_reference()
        return engine.decode([int(i) for i in ids], skip_special)

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

    @property
    def reads_special(self) -> bool:
        """Whether special tokens that occur in a text become special tokens."""
        return not (self.ordinary or self._model.plain)

    def special_tokens(self) -> dict[str, int]:
        """Return the added special tokens."""
        return dict(self._vocabulary.special)

    def is_special(self, token: str) -> bool:
        """Return whether a token is a special or added one, or the BOS or EOS that the tokenizer's files declare."""
        return token in self._vocabulary.added or token in (self.declared_bos, self.declared_eos)

    def versions(self) -> dict[str, str]:
        """Return the packages that determine the ids, with their versions."""
        package = _PACKAGES[self.backend]
        return {package: _version(package)}

    def facts(self) -> TokenizerFacts:
        """Return the facts about the tokenizer that a manifest stores."""
        loaded = {"applied": self.settings, "template_source": self.template_source, "pattern": self.pattern}
        known = (self.name, self.hash, self.vocab_size, self.backend, self.versions(), self._given)
        return TokenizerFacts(*known, loaded if self.settings else {})

    def offsets(self, text: str) -> tuple[Uint32s, Int64s]:
        """Return the ids of a text, and the characters that each token covers, int64[n, 2]. Never uses fastokens.

        Raises:
            ConfigError: the tokenizer is a SentencePiece model without a ``tokenizer.json``.
        """
        engine = self._with_offsets()
        template = self.around if self.template else None
        ordinary = self.ordinary or self._model.plain
        ids, places = engine.offsets(text, template is not None and template.own, ordinary)
        if template is None or template.own:
            return ids, places
        head, tail = (np.zeros((len(tokens), 2), np.int64) for tokens in (template.before, template.after))
        return around(ids, np.array([len(ids)]), template)[0], np.concatenate((head, places, tail))

    def places(self, text: str, ids: Uint32s) -> Int64s | None:
        """Return the characters of each of the tokens that `encode` with `placed` makes of a text, int64[n, 2].

        If the bytes of the tokens are the text, as in byte-level tokenizers, no engine is asked, and white space
        belongs to the token that has it. Else, they are those of `offsets`.

        Returns:
            None if `offsets` has other ids.
        """
        raw, (spelled, starts) = text.encode(), self._spelled
        sizes = starts[ids + np.uint32(1)] - starts[ids]
        ends = np.cumsum(sizes)
        same = ends[-1:].sum() == len(raw)
        if same:  # the tokens' bytes one after another
            own = spelled[np.repeat(starts[ids] - ends + sizes, sizes) + np.arange(len(raw))]
            same = bool((own == np.frombuffer(raw, np.uint8)).all())
        if not same:
            found, places = self.offsets(text)
            return places if np.array_equal(found, ids) else None
        begun = np.cumsum((np.frombuffer(raw, np.uint8) & 0xC0) != 0x80)  # characters up to each byte
        first = begun[np.minimum(np.append(0, ends)[:-1], len(raw) - 1)] - 1
        return np.stack((first, begun[ends - 1]), axis=1)

    @functools.cached_property
    def _spelled(self) -> tuple[npt.NDArray[np.uint8], Int64s]:
        """The bytes of the tokens of the vocabulary, if it is of bytes, else their characters; where each begins."""
        tokens, added = list(self._vocabulary.ids), self._vocabulary.added
        sizes = np.fromiter(map(len, tokens), np.int64, len(tokens))
        characters = np.frombuffer("".join(tokens).encode("utf-32-le", "surrogatepass"), "<u4")
        byte_of = np.full(0x110000, 256, np.uint16)
        byte_of[[ord(character) for character in ranks.spelling()]] = range(256)
        spelled, ends = byte_of[characters], np.cumsum(sizes)
        other = np.bincount(np.searchsorted(ends, np.flatnonzero(spelled == 256), "right"), minlength=len(tokens)) > 0
        raw, starts = spelled.astype(np.uint8).tobytes(), (ends - sizes).tolist()
        found = [b""] * self.size
        for token, number, begin, end, odd in zip(
            tokens, self._vocabulary.ids.values(), starts, ends.tolist(), other.tolist(), strict=True
        ):
            found[number] = token.encode("utf-8", "replace") if odd or token in added else raw[begin:end]
        return np.frombuffer(b"".join(found) or b" ", np.uint8), bounds_of([len(one) for one in found])

    def masked(
        self, texts: Sequence[str], spans: Sequence[Sequence[tuple[int, int]] | None]
    ) -> tuple[Encoded, npt.NDArray[np.bool_]]:
        """Return the ids of texts without the template, and which tokens have a character of the spans of each text.

        Args:
            texts: the texts.
            spans: for each text, ranges of characters in order; None if all tokens count.

        Raises:
            ConfigError: as `offsets`.
            FeedmillError: the engines differ on a text.
        """
        ordinary = self.ordinary or self._model.plain
        engine = self._with_offsets() if self._model.guarded or self._model.text is None else self._engine
        found = engine.encode(list(texts), False, ordinary)
        marks, unknown = token_marks(texts, found.ids, found.lengths, spans, self._spelled)
        ends = np.cumsum(found.lengths)
        for number in np.flatnonzero(unknown).tolist():
            own = slice(int(ends[number] - found.lengths[number]), int(ends[number]))
            ids, places = self._with_offsets().offsets(texts[number], False, ordinary)
            if not np.array_equal(ids, found.ids[own]):
                raise FeedmillError("the tokenizer's engines differ on a conversation", kind="verification-failed")
            ranges = spans[number]
            marks[own] = ranges is None
            for begin, end in ranges or ():
                inside = np.flatnonzero((places[:, 0] < end) & (places[:, 1] > begin))
                if begin < end and len(inside):
                    marks[own][inside[0] : inside[-1] + 1] = True
        return found, marks

    def _with_offsets(self) -> Any:
        """Return an engine that knows the characters of each token."""
        if self._offsets is None:
            if self._model.text is None:
                raise ConfigError(
                    "the characters of tokens, as for loss masks, require a tokenizer.json",
                    file=str(self.path),
                    kind="unsupported-tokenizer",
                )
            made = None if self.reference == "ranks" else engines.HuggingFace(self.path, self._model.text)
            self._offsets = made or self._model.make_reference()
        return self._offsets


def load_tokenizer(
    name: str | os.PathLike[str],
    backend: Backend = "auto",
    *,
    check: bool = True,
    template_source: TemplateSource = "auto",
    pattern: str | None = None,
) -> Tokenizer:
    """Load a tokenizer from this machine; nothing is downloaded.

    Args:
        name: a file (``tokenizer.json``, SentencePiece ``.model``, ``.tiktoken``, ``tekken.json``, ``vocab.json`` next
            to ``merges.txt``, ``vocab.txt``), its folder, or the name of a model in the Hugging Face cache.
        backend: ``auto`` uses fastokens if it loads the file, or its conversion, and its ids equal those of the kind's
            reference (see `feedmill.tokens.engines`), else the reference. Any other value forces that engine.
        check: compare the fast engine with the reference first. Pass False only for a file that was just compared.
        template_source: source of the template: ``file`` for only the model file, ``flags`` for ``add_bos_token`` and
            ``add_eos_token`` in ``tokenizer_config.json`` next to it, ``auto`` for what transformers' ``AutoTokenizer``
            does, if its releases 4 and 5 do the same, and ``transformers4`` or ``transformers5`` for one of them. See
            `feedmill.tokens.kinds.releases`. Except for ``file``, the other settings there are applied, too. ``class``
            is ``file``, but a SentencePiece model is read with special tokens in texts, as its class in transformers
            does: for conversations.
        pattern: how a tiktoken file splits texts: the name of an encoding (``cl100k_base``, ``llama3``), or a regular
            expression. Not required for files that are recognized.

    Raises:
        NotFound: the file does not exist; the message names where it was looked for.
        ConfigError: the file is not a tokenizer, the backend cannot read it, or the settings next to it contradict it.
        MissingExtra: a package is missing.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"unknown tokenizer backend {backend!r}", fix=f"Use one of {', '.join(BACKENDS)}.")
    given = os.fspath(name)
    path = find_tokenizer(given)
    if path.name == "tokenizer.json" and backend in ("auto", "fastokens"):
        load_ahead(path)
    model = read_model(path, template_source, pattern)
    if backend in ("sentencepiece", "ranks") and backend != model.reference:
        raise ConfigError(f"this is {model.kind}, which the backend {backend!r} cannot read", file=str(path))

    document = model.vocabulary.document or {}
    switched_off = engines.random_settings(document)
    engine, used, fallback = _engine(path, model, backend, check, switched_off)
    if template_source != "file" and model.reference == "hf":
        model.plain = read_settings(path.parent / CONFIG).get("split_special_tokens") is True
        model.settings += ["split_special_tokens"] if model.plain else []
    made = Tokenizer(engine, model, name=given, path=path, backend=used)
    made.fallback, made.template_source, made.switched_off = fallback, template_source, switched_off
    made.pattern = pattern
    if model.reference != "ranks":
        sentencepiece = model.reference == "sentencepiece"
        source: TemplateSource = "file" if template_source == "class" or model.five else template_source
        source = "auto" if model.classes and source == "file" else source
        made.around = resolve(path, None if sentencepiece else document, model.vocabulary.ids, source)
    made.template = made.around is not None
    model.vocabulary.document = None  # it is large, and no longer needed
    return made


def _engine(
    path: Path, model: Model, backend: Backend, check: bool, switched_off: Mapping[str, Any]
) -> tuple[TokenizerEngine, Backend, str | None]:
    """Return the engine, its name, and why a faster one is not used. Raises if it was requested and cannot be used."""
    if backend == model.reference:
        return model.make_reference(), backend, None
    if model.text is None and backend != "auto":
        what = f"this is {model.kind}, which the backend {backend!r} cannot read: {model.why}"
        raise ConfigError(what, file=str(path))

    reasons = [] if model.text is not None else [f"{model.kind} is not converted, because {model.why}"]
    reference = functools.cache(model.make_reference)
    for name in ("fastokens", "hf") if backend == "auto" else (backend,):
        if name == model.reference or model.text is None:
            continue
        wrong: FeedmillError
        if name == "fastokens" and switched_off:
            wrong = ConfigError(
                f"fastokens cannot disable the {' and '.join(switched_off)} of the file",
                file=str(path),
                kind="unsupported-tokenizer",
                fix="Use --tokenizer-backend hf.",
            )
        else:
            try:
                engine = _load(name, path, model)
                if check:
                    with contextlib.suppress(MissingExtra):  # a minimal installation has nothing to compare with
                        _compare(engine, reference, name, path, model)
            except FeedmillError as error:
                wrong = error
            else:
                return engine, name, reasons[0] if reasons else None
        if backend != "auto":
            raise wrong
        reasons.append(wrong.what)
    return reference(), model.reference, "; ".join(reasons) or None


def _load(name: str, path: Path, model: Model) -> TokenizerEngine:
    engine: TokenizerEngine
    if name == "fastokens":
        engine = engines.Fastokens(path, None if model.own else model.text)
    else:
        engine = engines.HuggingFace(path, model.text)
    return Guarded(engine, model.make_reference(), model.guarded) if model.guarded else engine


def _compare(
    engine: TokenizerEngine, reference: Callable[[], TokenizerEngine], name: str, path: Path, model: Model
) -> None:
    """Raise ConfigError if an engine's ids are not those of the reference. The verdict is kept.

    Raises:
        MissingExtra: the reference is not installed.
    """
    packages = [_PACKAGES[name], _PACKAGES[model.reference]]
    other = packages[1] if model.reference != "ranks" else "the rule of the file"
    document = model.vocabulary.document
    listed = document.get("added_tokens") if document is not None and model.reference == "hf" else None
    added = listed or [{"content": token} for token in (*model.vocabulary.special, *model.guarded)]
    pair = cut_twice(added)
    if pair is not None:
        what = f"{other} fails where {pair[1]!r} follows {pair[0]!r}, so {packages[0]} cannot be compared with it"
    else:
        key = [model.hash, xxhash.xxh3_128_hexdigest(model.text or b""), *packages, *map(_version, packages), CHECK]
        found = kept(
            f"verdict {key}", lambda: orjson.dumps(differences(engine, reference(), added=added, plain=model.plain))
        )
        wrong = orjson.loads(found)
        if not wrong:
            return
        what = f"{packages[0]} and {other} differ on {len(wrong)} of the self-check's texts, e.g. {wrong[0]!r:.80}"
    raise ConfigError(
        what, file=str(path), kind="verification-failed", fix=f"Use --tokenizer-backend {model.reference}."
    )


@functools.cache
def _version(package: str) -> str:
    """Return the version of an installed package, as `importlib.metadata`, whose import takes longer than the look."""
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder or "."):
                if name.startswith(f"{package}-") and name.endswith(".dist-info"):
                    with open(os.path.join(folder, name, "METADATA"), encoding="utf-8") as lines:
                        return next(line for line in lines if line.startswith("Version:")).partition(":")[2].strip()
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def identity_of(tokenizer: Tokenizer) -> str:
    """Return the hash, backend, versions and settings of a tokenizer."""
    versions = ",".join(f"{name}={number}" for name, number in sorted(tokenizer.versions().items()))
    around = tokenizer.around
    template = "" if around is None or around.own else f" template {around.before} {around.after}"
    settings = f" settings {tokenizer.settings}" if tokenizer.settings else ""
    return f"{tokenizer.hash} {tokenizer.backend} {versions}{template}{settings}"


logger = logging.getLogger("feedmill")

AUTO = "auto"
NOTHING = ("none", "null", "false", "~")
"""Texts that mean no token, in any case of letters: what YAML, JSON, Python and command lines write for it."""

Given = str | bool | None
"""Value of the option `eos` or `bos`; of the bools, only False is valid."""


class Ends(NamedTuple):
    """The tokens before and after each document, and their ids; None for no token."""

    bos: str | None
    eos: str | None
    bos_id: int | None
    eos_id: int | None


def ends_of(tokenizer: Tokenizer, bos: Given, eos: Given) -> Ends:
    """Return the tokens that the options `bos` and `eos` stand for.

    Raises:
        ConfigError: a token is not in the vocabulary or is an ordinary word, or the tokenizer's files name none.
    """
    (first, first_id), (last, last_id) = (_end(tokenizer, value, what) for value, what in ((bos, "BOS"), (eos, "EOS")))
    return Ends(first, last, first_id, last_id)


def declare_eos(tokenizer: Tokenizer, token: str) -> None:
    """Let a configuration of another program declare the EOS, which is then ``auto``; an ordinary word is logged.

    Raises:
        ConfigError: the token is not in the vocabulary.
    """
    tokenizer.require(token, "EOS")
    if not tokenizer.is_special(token):
        logger.warning(
            "%s: the EOS %r is an ordinary token of the vocabulary, which texts contain too", tokenizer.path, token
        )
    tokenizer.declared_eos = token


def is_nothing(value: Given) -> bool:
    """Return whether a value stands for no token.

    >>> is_nothing("None"), is_nothing(False), is_nothing("</s>")
    (True, True, False)
    """
    return value is None or value is False or str(value).lower() in NOTHING


def _end(tokenizer: Tokenizer, value: Given, what: str) -> tuple[str | None, int | None]:
    if is_nothing(value):
        return None, None
    option = what.lower()
    if not isinstance(value, str):
        raise ConfigError(
            f"{option} is {value!r}: expected a token as text", kind="bad-option", fix="Pass a token, auto or none."
        )
    declared = tokenizer.declared_eos if what == "EOS" else tokenizer.declared_bos
    if value == AUTO:
        if declared is None:
            raise ConfigError(
                f"the tokenizer's files do not define {'an EOS' if what == 'EOS' else 'a BOS'} token",
                file=str(tokenizer.path),
                kind="unknown-token",
                fix=f"Name one as {option!r} ('--{option} TOKEN' on the command line); 'none' stands for no token."
                f" {_special(tokenizer)}",
            )
        return declared, tokenizer.require(declared, what)
    number = tokenizer.require(value, what)
    if not tokenizer.is_special(value):
        raise ConfigError(
            f"the {what} {value!r} is an ordinary token of the vocabulary, which texts contain too: expected a special"
            " token",
            file=str(tokenizer.path),
            kind="unknown-token",
            fix=f"Pass another token, or none for no {what}; if {value!r} is meant, set {option}_token to it in"
            f" tokenizer_config.json. {_special(tokenizer)}",
        )
    return value, number


def _special(tokenizer: Tokenizer) -> str:
    names = list(tokenizer.special_tokens())
    more = f" and {len(names) - 20:,} more" if len(names) > 20 else ""
    return f"Special tokens of the tokenizer: {', '.join(names[:20]) or 'none'}{more}."
