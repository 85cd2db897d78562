"""Tokenizing into Dolma's folders: groups of files, each mixed and written as numbered files.

The tokens of all inputs are made as for any other output (`feedmill.tokens.tokenize`): units of work on all cores,
pieces in a folder inside the destination, kept when a run is killed. Then each group's documents are read from its
pieces in the order of `feedmill.tokens.ring`. With the same inputs, options and seed the files are the same.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import ceil, log10
from typing import Any

import numpy as np
import xxhash

from feedmill.documents.file import DocumentFile
from feedmill.documents.typed import Typed, TypedReader
from feedmill.documents.units import UNIT_BYTES, cut
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.tokens.dolma import CSV, NPY, dolma_dtype
from feedmill.formats.tokens.manifest import TokenManifest, manifest_path, read_manifest, write_manifest
from feedmill.jobs.policy import RAISE, OnError, on_error_policy
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run
from feedmill.jobs.unfinished import is_unfinished
from feedmill.jobs.work import Work, tidy
from feedmill.storage import Store, open_store
from feedmill.tokens.counting import Counts, in_order
from feedmill.tokens.encode import Encoding
from feedmill.tokens.parts import Group, GroupFile, Part, write_group
from feedmill.tokens.ring import Ring, groups
from feedmill.tokens.segments import adds_space
from feedmill.tokens.tokenize import PRELOAD
from feedmill.tokens.tokenizer import Tokenizer, load_tokenizer
from feedmill.tokens.work import Recipe, identity_of, offer, tasks_of, work

MANIFEST = "tokens"
"""The manifest of the folder is called as that of a file of this name would be; each part has its own beside it."""

_SENT = 64
"""Small files that a process gets at once."""

_FEW = 1 << 25
"""Fewer tokens are written sooner by this process than other processes are started."""


@dataclass
class GroupedReport(Counts):
    """What a run wrote.

    Attributes:
        folder, parts: where; the files' names without suffix.
        empty: documents whose text is nothing but white space, which are passed over.
        empty_groups: groups of files without a token; with ``exact`` each left a file of zeros.
        dtype: of a token.
        seed: of the order of the files.
    """

    folder: str
    empty: int = 0
    parts: list[str] = field(default_factory=list)
    empty_groups: int = 0
    dtype: str = ""
    seed: int = 0


def tokenize_grouped(
    files: Sequence[DocumentFile],
    folder: str,
    *,
    tokenizer: str | os.PathLike[str],
    bos: int | None = None,
    eos: int | None = None,
    segment: bool = False,
    specials_as_text: bool = False,
    typed: Typed = Typed(),
    dtype: str | None = None,
    processes: int = 1,
    files_per_group: int | None = None,
    ring: Ring = Ring(),
    limit: int = 1 << 30,
    seed: int = 3920,
    on_error: OnError = RAISE,
    exact: bool = False,
    allow_empty: bool = False,
    overwrite: bool = False,
    unit_bytes: int = UNIT_BYTES,
    progress: bool | None = None,
) -> GroupedReport:
    """Tokenize files of documents into ``part-<group>-<number>.npy`` and ``.csv.gz``.

    Args:
        files: of JSON lines, whatever their names end in.
        bos, eos: ids put around documents that do not have them there already; one of them is needed.
        segment: encode each paragraph by itself, see `feedmill.tokens.segments`.
        typed: where text and id are.
        dtype: of a token; None for the smallest that the vocabulary fits.
        processes: how many processes work, and into how many groups files are divided (unless `files_per_group` makes
            more): so it decides the files, as it does in Dolma.
        limit: a file has fewer tokens, unless it is one longer document.
        seed: of the order of files and documents.
        exact: keep what Dolma does where it is wrong: bad documents are left out, a type of token must be given
            exactly, files are replaced, a group without tokens leaves zeros.
        allow_empty: write the folder even if there is not one document with text.
        overwrite: replace a folder's token files.

    Raises:
        ConfigError: for options, and where the folder has token files of another job.
        EmptyResult: there is not one document with text.
        DataError: a document cannot be used (and `on_error` is ``raise``), or a file is damaged.
    """
    begin = time.perf_counter()
    _check(bos, eos, processes, ring, limit)
    on_error = on_error_policy(on_error)
    TypedReader(typed)  # errors in the fields are reported before the work begins
    loaded = load_tokenizer(tokenizer, template_source="file")  # Dolma reads tokenizer.json alone
    kind = _dtype(loaded, dtype, (bos, eos), exact)
    wide = max(loaded.size, 1 + max(bos or 0, eos or 0)) > 1 << 16
    how = Encoding(
        bos=bos,
        eos=eos,
        always=False,
        template=False,
        ordinary=specials_as_text,
        limit=int(min(np.iinfo(kind).max, (1 << 32) - 1)),
        dtype="<u4" if wide else "<u2",
        segment=segment,
        prefix=segment and loaded.path.suffix == ".json" and adds_space(loaded.path),
        keep_empty=True,
    )
    skip = exact or on_error == "skip"
    recipe = Recipe(str(loaded.path), loaded.backend, identity_of(loaded), typed.text, how, skip, True, typed, "file")
    ordered = list(files)
    random.Random(f"files {seed}").shuffle(ordered)
    report = GroupedReport(
        folder,
        files=len(ordered),
        dtype=kind.name,
        tokenizer=loaded.name,
        backend=loaded.backend,
        fallback=loaded.fallback,
        seed=seed,
    )
    plan = [tuple(ordered[part]) for part in groups(len(ordered), processes, files_per_group)]
    words = {"ring": asdict(ring), "limit": limit, "seed": seed, "exact": exact, "dtype": kind.str}
    job = _Job(folder, recipe, plan, loaded, kind, ring, limit, words, report)
    job.run(processes, overwrite or exact, unit_bytes, progress, allow_empty or exact)
    report.seconds = time.perf_counter() - begin
    return report


def _check(bos: int | None, eos: int | None, processes: int, ring: Ring, limit: int) -> None:
    if bos is None and eos is None:
        raise ConfigError(
            "neither BOS nor EOS is given, and documents would run together",
            kind="no-eos",
            fix="Give the id of one of them, e.g. --tokenizer.eos_token_id.",
        )
    if min(bos or 0, eos or 0) < 0 or processes < 1 or ring.files < 1 or ring.batch < 1 or limit < 1:
        raise ConfigError("ids must not be negative, sizes and processes not below 1", fix="Fix the options.")


def _dtype(tokenizer: Tokenizer, given: str | None, ids: Sequence[int | None], exact: bool) -> np.dtype[Any]:
    """The type of a token. Raises ConfigError where the one that is given does not do."""
    needed = dolma_dtype(max(tokenizer.vocab_size, *(1 + (i or 0) for i in ids)) if not exact else tokenizer.vocab_size)
    if needed.kind != "u":
        raise ConfigError(
            f"an id of a special token is beyond all types: {max(i or 0 for i in ids)}", fix="Correct it."
        )
    if given is None and not exact:
        return needed
    try:
        kind = np.dtype(given or "uint16").newbyteorder("<")
    except TypeError:
        raise ConfigError(f"there is no type {given!r}", fix=f"Use {needed.name}.") from None
    if (kind != needed) if exact else (kind.kind != "u" or kind.itemsize < needed.itemsize):
        raise ConfigError(
            f"tokens of type {kind.name} do not fit a vocabulary of {tokenizer.vocab_size:,} and its special ids",
            file=str(tokenizer.path),
            kind="bad-token-size",
            fix=f"Set dtype to {needed.name}" + (" (--exact takes no other)." if exact else ", or leave it out."),
        )
    return kind


class _Job:
    """One run, from units to numbered files."""

    def __init__(
        self,
        folder: str,
        recipe: Recipe,
        plan: list[tuple[DocumentFile, ...]],
        tokenizer: Tokenizer,
        dtype: np.dtype[Any],
        ring: Ring,
        limit: int,
        words: dict[str, Any],
        report: GroupedReport,
    ) -> None:
        self.folder, self.store = folder, open_store(folder)
        self.recipe, self.plan, self.tokenizer = recipe, plan, tokenizer
        self.dtype, self.ring, self.limit, self.words, self.report = dtype, ring, limit, words, report
        lines = [recipe.key(), repr(sorted(words.items()))]
        lines += [f"{n} {file.url} {file.version}" for n, group in enumerate(plan) for file in group]
        self.job = xxhash.xxh3_64_hexdigest("\n".join(lines).encode())

    def run(self, workers: int, overwrite: bool, unit_bytes: int, progress: bool | None, allow_empty: bool) -> None:
        identity = {"verb": "tokenize", "job": self.job}
        if not is_unfinished(self.store, MANIFEST, identity):
            if self._complete():
                tidy(self.store, MANIFEST)
                return
            if not overwrite:
                self._refuse()
        with Work(self.store, MANIFEST) as job:
            job.begin(identity, keep_staged=True)
            made = self._pieces(job, workers, unit_bytes, progress)
            self.report.refuse_empty(self.folder, allow_empty)
            self._write(made, workers, progress)
            job.finish()

    def _pieces(self, job: Work, workers: int, unit_bytes: int, progress: bool | None) -> list[list[GroupFile]]:
        """Tokenize all units; for each group its files with their pieces."""
        everything = [file for group in self.plan for file in group]
        units, owners = [], []
        for number, file in enumerate(everything):  # by number: a file may be named twice
            for unit in cut([file], unit_bytes):
                units.append((unit,))
                owners.append(number)
        tasks = tasks_of(job, units, self.recipe, workers)
        self.report.units = len(tasks)
        offer(self.tokenizer)
        places: list[list[tuple[str, int]]] = [[] for _ in everything]
        with Progress("tokenizing", sum(task.bytes for task in tasks), "B", progress) as bar:
            at_once = min(_SENT, max(1, unit_bytes * len(tasks) // max(1, sum(task.bytes for task in tasks))))
            made_units = run(work, tasks, workers=workers, preload=PRELOAD, chunk=at_once)
            results = in_order(tasks, made_units, self.report)
            for owner, (done, line) in zip(owners, results, strict=True):
                places[owner].append((done.task.path, line))
                self.report.empty += done.facts.empty
                bar.advance(done.task.bytes)
                bar.note(f"{self.report.tokens / max(bar.elapsed, 1e-9) / 1e6:.1f} M tokens/s")
        made = iter(places)
        return [[GroupFile(f.url, f.size, tuple(next(made))) for f in group] for group in self.plan]

    def _write(self, made: list[list[GroupFile]], workers: int, progress: bool | None) -> None:
        digits = ceil(log10(len(made) + 1))
        tasks = [
            Group(
                self.folder,
                f"part-{number:0{digits}d}",
                tuple(files),
                self.dtype.str,
                self.recipe.typed is not None and self.recipe.typed.id is not None,
                self.ring,
                self.limit,
                f"{self.words['seed']} {number}",
                bool(self.words["exact"]),
            )
            for number, files in enumerate(made)
        ]
        if self.report.tokens < _FEW:
            workers = 1
        with Progress("writing", len(tasks), "groups", progress) as bar:
            written = list(run(write_group, tasks, workers=workers, progress=bar, preload=PRELOAD))
        parts = [part for group in written for part in group]
        self.report.empty_groups = sum(not any(part.tokens for part in group) for group in written)
        self.report.parts = [part.name for part in parts]
        if not self.words["exact"]:
            self._remove_others({part.name for part in parts})
        for part in parts:
            write_manifest(self.store, part.name + NPY, self._manifest(part.documents, part.tokens, part.sizes))
        write_manifest(self.store, MANIFEST, self._total(parts))

    def _total(self, parts: list[Part]) -> TokenManifest:
        sizes = {name: size for part in parts for name, size in part.sizes.items()}
        return self._manifest(self.report.documents, self.report.tokens, sizes)

    def _manifest(self, documents: int, tokens: int, sizes: dict[str, int]) -> TokenManifest:
        how, report = self.recipe.how, self.report
        counts = {"blank_lines": report.blank, "empty_documents": report.empty, "empty_groups": report.empty_groups}
        return TokenManifest(
            "dolma",
            documents,
            tokens,
            tokenizer=self.tokenizer.facts(),
            bos=how.bos,
            eos=how.eos,
            inputs=[{"path": f.url, "bytes": f.size, "version": f.version} for group in self.plan for f in group],
            skipped=report.skipped,
            skipped_examples=report.skipped_examples,
            options={"job": self.job, **self.words, "segment": how.segment, "groups": len(self.plan), **counts},
            sizes=sizes,
        )

    def _complete(self) -> bool:
        """Whether the folder holds what this very job made; then the report tells of it."""
        found = read_manifest(self.store, MANIFEST)
        if found is None or found.options.get("job") != self.job:
            return False
        if any(not self.store.exists(n) or self.store.stat(n).size != size for n, size in found.sizes.items()):
            return False
        report = self.report
        report.complete, report.documents, report.tokens = True, found.documents, found.tokens
        report.skipped, report.skipped_examples = found.skipped, found.skipped_examples
        report.blank, report.empty = found.options["blank_lines"], found.options["empty_documents"]
        report.empty_groups = found.options["empty_groups"]
        report.parts = [name.removesuffix(NPY) for name in found.sizes if name.endswith(NPY)]
        report.bytes = sum(file.size for group in self.plan for file in group)
        return True

    def _refuse(self) -> None:
        if _token_files(self.store):
            raise ConfigError(
                "there are token files already, which this job did not make",
                file=self.folder,
                kind="exists",
                fix="Choose another destination, or add --overwrite to replace them.",
            )

    def _remove_others(self, names: set[str]) -> None:
        """Remove numbered files of an earlier job: they would be read together with the new ones."""
        for path in _token_files(self.store):
            stem = path.removesuffix(NPY).removesuffix(CSV)
            if stem not in names:
                self.store.delete(path)
                if self.store.exists(manifest_path(stem + NPY)):
                    self.store.delete(manifest_path(stem + NPY))


def _token_files(store: Store) -> list[str]:
    """The numbered files right in the folder."""
    try:
        entries = list(store.files(suffixes=(NPY, CSV)))
    except NotFound:
        return []
    return [entry.path for entry in entries if entry.path.startswith("part-") and "/" not in entry.path]
