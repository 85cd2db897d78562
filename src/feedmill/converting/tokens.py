"""Token files from one format to another: the same documents, one file for each file; nothing is ever detokenized."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.converting import vlatext
from feedmill.converting.engine import Conversion, Different, Unit, Written
from feedmill.converting.job import ConvertWork, Done, read_hashes, write_hashes
from feedmill.converting.plan import Loss, Options, Plan, named
from feedmill.errors import ConfigError, DataError
from feedmill.formats.tokens.base import Int64s, Tokens
from feedmill.formats.tokens.manifest import TokenManifest, manifest_path, write_manifest
from feedmill.formats.tokens.suffixes import FORMATS
from feedmill.formats.tokens.vla_text import MANIFEST, SEQUENCES, shard_files, write_vla_text
from feedmill.storage import Store, join_url, open_store, split_url
from feedmill.tokens.corpus import SUFFIXES, Corpus, open_corpus
from feedmill.tokens.outputs import sizes_of
from feedmill.tokens.rewrite import gathered
from feedmill.tokens.targets import Form, main_file, write_documents
from feedmill.tokens.units import Documents

ENDINGS = {"pbin": ".pbin", "ds": ".ds", "megatron": ".bin", "dolma": ".npy"}
_LEAST = {"pbin": 1, "ds": 2, "megatron": 2, "dolma": 2}

Batch = tuple[Tokens, Int64s, npt.NDArray[np.bool_] | None]
"""Ids one after another, tokens per document, and the loss mask."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What every process needs.

    Attributes:
        form: how documents are stored; None for ``vla-text``.
        sequence: tokens of a sequence of ``vla-text``, the one that is predicted last included.
        per_shard: sequences of a shard of it.
        beside: parts beside the ids of a source in ``vla-text``, which are left out.
    """

    source: str
    kind: str
    destination: str
    to: str
    folder: str
    notes: str
    form: Form
    sequence: int = 0
    per_shard: int = SEQUENCES
    beside: frozenset[str] = frozenset()


@lru_cache(64)
def corpus_of(url: str, token_size: int | None) -> Corpus:
    """The documents of one file, or of all of a folder, once for each process."""
    return open_corpus([url], token_size=token_size, mixed=True)


def plan_tokens(source: str, destination: str, to: str, kind: str, options: Options, work: ConvertWork) -> Conversion:
    """The conversion of token files. Raises as opening them does, and `ConfigError` for options that are invalid."""
    corpus_of.cache_clear()
    _refuse_options(source, to, options)
    plan = Plan("tokens", source, destination, kind, to)
    if kind == "vla":
        kind = plan.kind = "vla-text"
    identity: dict[str, Any] = {"source": source, "kind": kind, "to": to}
    identity |= options.identity()
    loss, tokenizer, size = False, None, options.token_size or 4
    beside: frozenset[str] = frozenset()
    if kind == "vla-text":
        files, plan.count, beside = vlatext.files_of(source)
        identity["files"] = files
        if beside:
            padding = " (padding stays among the tokens)" if "attention_mask.pth" in beside else ""
            plan.losses.append(Loss(f"the parts {named(sorted(beside))} beside the ids{padding}", content=True))
        units = [Unit(0, ("", vlatext.name_of(source)), plan.count)]
    else:
        corpus = open_corpus([source], token_size=options.token_size or _largest(source), mixed=True)
        identity["files"] = corpus.facts()
        plan.count = len(corpus)
        Documents(corpus)  # says where an index is missing
        loss, size = corpus.has_loss, corpus.token_size
        tokenizer = corpus.name or (corpus.tokenizer.name if corpus.tokenizer is not None else None)
        units = _units(corpus, source, to)
    if loss and to != "ds":
        fix = "Only .ds has a place for it."
        plan.losses.append(Loss("the loss masks of tokens", content=True, fix=fix))
    if kind == "dolma":
        plan.losses.append(Loss("ids and files of origin of the documents"))
    form = Form(to, max(size, _LEAST.get(to, 1)), tokenizer, loss and to == "ds")
    shared = Shared(source, kind, destination, to, work.folder, work.place.url, form, beside=beside)
    if to == "vla-text":
        shared = replace(shared, sequence=(options.seq_len or 0) + 1, per_shard=_per_shard(options))
        units = [Unit(0, ("", ""), plan.count or 0)]
        fix = "Every other token format keeps them."
        plan.losses.append(Loss("where documents end, and the tokens after the last sequence", content=True, fix=fix))
    plan.outputs = len(units)
    finish = partial(_finish, shared)
    writes = ([MANIFEST], r"shard-\d+\.tar") if to == "vla-text" else ([p for u in units for p in _written(to, u)], "")
    return Conversion(plan, units, convert_unit, shared, identity, finish, check_unit, writes, False, "documents")


def _per_shard(options: Options) -> int:
    return options.samples_per_shard or SEQUENCES


def _refuse_options(source: str, to: str, options: Options) -> None:
    if (to == "vla-text") != (options.seq_len is not None):
        raise ConfigError(
            "'vla-text', and it alone, is written in sequences of a length",
            kind="no-sequence-length" if options.seq_len is None else "unknown-option",
            fix="Add --seq-len N, that of the training program." if options.seq_len is None else "Leave --seq-len out.",
        )
    if options.split is not None or options.fields:
        raise ConfigError("token files have no splits or parts", file=source, fix="Leave --split and --fields out.")
    allowed = (1, 2, 4) if to in ("pbin", "vla-text") else (2, 4)
    if options.token_size is not None and options.token_size not in allowed:
        raise ConfigError(f"{to} has no tokens of {options.token_size} bytes", kind="bad-token-size")


def _largest(source: str) -> int:
    """The largest token size of the source's files: they stay files of their own, but share a form."""
    from feedmill.tokens.corpus import open_sets

    return min(4, max(shard.dtype.itemsize for dataset in open_sets(source) for shard in dataset.shards))


def _units(corpus: Corpus, source: str, to: str) -> list[Unit]:
    """One output for each file, named like it."""
    root = open_store(source).url.rstrip("/") if _is_folder(source) else ""
    units: list[Unit] = []
    seen: dict[str, str] = {}
    for number, (store, shard) in enumerate(corpus.shards):
        path = store.locate(shard.path)
        name = path.removeprefix(root + "/") if root and path.startswith(root + "/") else path.rpartition("/")[2]
        stem = name.rpartition(".")[0]
        if stem in seen:
            raise ConfigError(
                f"{seen[stem]!r} and {name!r} would have one name", file=source, kind="name-clash", fix="Rename one."
            )
        seen[stem] = name
        units.append(Unit(number, (path, stem + ENDINGS.get(to, "")), shard.documents or 0))
    return units


def is_megatron_folder(source: str) -> bool:
    """Whether a folder holds files of Megatron-LM, which are only opened by their names elsewhere."""
    paths = {entry.path for entry in open_store(source).files(suffixes=(".bin", ".idx"))}
    return any(path.endswith(".bin") and path[:-4] + ".idx" in paths for path in paths)


def _target(to: str, name: str) -> str:
    return name if name.endswith(ENDINGS[to]) else name + ENDINGS[to]


def _written(to: str, unit: Unit) -> list[str]:
    """All files of a file of tokens."""
    main = main_file(_target(to, unit.what[1]))
    stem = main.rpartition(".")[0]
    return [*(stem + suffix for suffix in FORMATS[to]), manifest_path(main)]


def _is_folder(source: str) -> bool:
    return not source.endswith(tuple(SUFFIXES))


def batches_of(shared: Shared, path: str) -> Iterator[Batch]:
    """The documents of a file of the source; of all of it where the path is empty."""
    if shared.kind == "vla-text":
        for sequences in vlatext.sequences_of(shared.source, shared.beside):
            yield np.concatenate(sequences), np.asarray([len(s) for s in sequences], np.int64), None
        return
    corpus = corpus_of(path or shared.source, None if path else _largest(shared.source))
    yield from read_corpus(corpus, loss=shared.form.loss)


def read_corpus(corpus: Corpus, *, loss: bool) -> Iterator[Batch]:
    """The documents of a corpus, in their order."""
    units = Documents(corpus)
    with corpus.mapped() as mapped:
        yield from gathered(corpus, mapped, units, range(len(units)), loss)


def document_hashes(batch: Batch) -> list[bytes]:
    """xxh3-128 of each document: its ids as 32 bits, its mask where it has one. 16 bytes each."""
    tokens, lengths, loss = batch
    ids = np.ascontiguousarray(tokens, "<u4").view(np.uint8).data
    ends = np.cumsum(lengths).tolist()
    out = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        word = xxhash.xxh3_128(ids[4 * start : 4 * end])
        if loss is not None:
            word.update(b"\0")
            word.update(np.packbits(loss[start:end]).tobytes())
        out.append(word.digest())
    return out


@contextmanager
def _writer(shared: Shared, store: Store, path: str) -> Iterator[Any]:
    if shared.to == "dolma":
        from feedmill.formats.tokens.dolma import write_dolma

        with write_dolma(store, path, np.dtype(f"<u{shared.form.token_size}")) as dolma:
            yield dolma
        return
    with write_documents(store, path, shared.form) as writer:
        yield writer


def convert_unit(shared: Shared, unit: Unit) -> Done:
    """Write one file, and note it."""
    store = open_store(shared.destination)
    path, target = unit.what
    if shared.to == "vla-text":
        return _convert_sequences(shared, unit)
    target = _target(shared.to, target)
    hashes: list[bytes] = []
    documents = tokens = 0
    with _writer(shared, store, target) as writer:
        for batch in batches_of(shared, path):
            writer.add(*batch)
            hashes += document_hashes(batch)
            documents, tokens = documents + len(batch[1]), tokens + len(batch[0])
        manifest = _manifest(shared, path, documents, tokens)
        write_manifest(store, main_file(target), manifest)  # sizes: once the files are there
    sizes = sizes_of(shared.to, store, main_file(target).removesuffix(FORMATS[shared.to][0]))
    write_manifest(store, main_file(target), msgspec.structs.replace(manifest, sizes=sizes))
    entry = store.stat(main_file(target))
    done = Done(unit.number, main_file(target), entry.size, entry.version, documents)
    write_hashes(shared.notes, done.number, b"".join(hashes))
    return done


def _manifest(shared: Shared, path: str, documents: int, tokens: int) -> TokenManifest:
    """The facts about the tokens, to be written beside them: their tokenizer goes along."""
    corpus = corpus_of(path, None) if path and shared.kind != "vla-text" else None
    known = corpus.manifests[0] if corpus is not None else None
    return TokenManifest(
        shared.to,
        documents,
        tokens,
        tokenizer=None if known is None else known.tokenizer,
        bos=None if known is None else known.bos,
        eos=None if known is None else known.eos,
        inputs=[] if corpus is None else [_input(fact) for fact in corpus.facts()],
        options={"verb": "convert", "from": shared.kind},
    )


def _input(fact: dict[str, Any]) -> dict[str, Any]:
    """What a manifest says of a file that was read: nothing that differs from one copy of it to another."""
    return {"path": fact["path"].rpartition("/")[2], "bytes": fact["bytes"], "documents": fact["documents"]}


def _convert_sequences(shared: Shared, unit: Unit) -> Done:
    """Write all documents as sequences of one length."""
    store = open_store(shared.destination)
    hashes: list[bytes] = []
    rest: Tokens = np.zeros(0, np.int64)
    folder, name = split_url(shared.destination)
    with write_vla_text(open_store(folder), name, shared.sequence, shared.per_shard) as writer:
        for tokens, lengths, _ in batches_of(shared, ""):
            writer.add(tokens, lengths)
            together = np.concatenate((rest, tokens.astype(np.int64)))
            count = len(together) // shared.sequence
            each = np.full(count, shared.sequence, np.int64)
            hashes += document_hashes((together[: count * shared.sequence], each, None))
            rest = together[count * shared.sequence :]
    entry = store.stat(MANIFEST)
    extra = {"notes": [f"{len(rest):,} tokens after the last sequence are left out"]} if len(rest) else {}
    done = Done(unit.number, MANIFEST, entry.size, entry.version, len(hashes), [], extra)
    write_hashes(shared.notes, done.number, b"".join(hashes))
    return done


def _finish(shared: Shared, store: Store, done: Sequence[Done]) -> list[str]:
    if shared.to == "vla-text":
        folder, name = split_url(shared.destination)
        return [*(path.removeprefix(f"{name}/") for path in shard_files(open_store(folder), name)), MANIFEST]
    files = []
    for each in done:
        stem = each.path.rpartition(".")[0]
        names = [stem + suffix for suffix in FORMATS[shared.to]]
        files += [name for name in [*names, manifest_path(each.path)] if store.exists(name)]
    return files


def check_unit(shared: Shared, item: Written) -> Different | None:
    """Read a file back through its own reader, and compare each document."""
    done = item.done
    wanted = read_hashes(shared.notes, done.number)
    number = 0
    for batch in _read_back(shared, done.path):
        for found in document_hashes(batch):
            if number >= len(wanted) or wanted[number].tobytes() != found:
                return Different(number, f"document {number}")
            number += 1
    return None if number == len(wanted) else Different(number, f"document {number}")


def _read_back(shared: Shared, path: str) -> Iterator[Batch]:
    if shared.to == "vla-text":
        for sequences in vlatext.sequences_of(shared.destination):
            yield np.concatenate(sequences), np.asarray([len(s) for s in sequences], np.int64), None
        return
    corpus = open_corpus([join_url(shared.destination, path)], mixed=True)
    if shared.form.loss and not corpus.has_loss:
        raise DataError("the mask is gone", file=join_url(shared.destination, path), kind="different")
    yield from read_corpus(corpus, loss=shared.form.loss)
