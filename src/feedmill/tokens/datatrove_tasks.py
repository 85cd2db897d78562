"""Deal inputs to tasks that each write one output, as datatrove's executor does.

Task t of n gets every n-th file of the sorted list, starting at file t, or every n-th row of a dataset in columns. The
numbers of tasks and files therefore determine the content of each output. A task without inputs writes empty files.
Each task still uses all cores, because its work is divided by bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from feedmill.documents.file import LINES, DocumentFile, kind_of
from feedmill.documents.find import find_documents, listed_by_datatrove
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.hub_splits import FolderSplits, by_split, declared_splits, unknown_split
from feedmill.jobs.policy import SKIP, OnError
from feedmill.storage import Store, join_url, open_store
from feedmill.tokens.job import TokenizeReport
from feedmill.tokens.tokenizer import AUTO, declare_eos, load_tokenizer
from feedmill.tokens.verbs.tokenize import tokenize

_OUTPUT = re.compile(r"(\d{5,})_unshuffled\.ds(\.|$)")


@dataclass
class DealtReport:
    """Report of each task, and the input files that are not documents and were skipped.

    Attributes:
        documents, tokens, skipped: totals of all tasks.
    """

    tasks: list[TokenizeReport]
    ignored: list[str]

    @property
    def documents(self) -> int:
        """Number of documents of all tasks."""
        return sum(task.documents for task in self.tasks)

    @property
    def tokens(self) -> int:
        """Number of tokens of all tasks."""
        return sum(task.tokens for task in self.tasks)

    @property
    def skipped(self) -> int:
        """Number of skipped documents of all tasks."""
        return sum(task.skipped for task in self.tasks)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        totals = {"documents": self.documents, "tokens": self.tokens, "skipped": self.skipped}
        return {**totals, "ignored_files": self.ignored, "tasks": [task.as_dict() for task in self.tasks]}


def tokenize_dealt(
    tasks: Sequence[Sequence[DocumentFile]],
    folder: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str],
    eos: str | None,
    column: str = "text",
    on_error: OnError = SKIP,
    workers: int | None = None,
    overwrite: bool = False,
    ignored: Iterable[str] = (),
    progress: bool | None = None,
) -> DealtReport:
    """Write one ``.ds`` with its index and metadata per task, named as datatrove does without shuffling.

    Args:
        tasks: the files of each task, see `deal_files` and `deal_rows`.
        folder: the output folder.
        tokenizer: path of a tokenizer; the metadata stores it as the tokenizer's name.
        eos: token after every document, which replaces the tokenizer's template; None applies only the template.
        column: field of the text.
        on_error, workers, overwrite, progress: as for `tokenize`; `overwrite` also removes files of higher task
            numbers.

    Raises:
        ConfigError: the folder has files of higher task numbers. Other errors are those of `tokenize`.
    """
    loaded = load_tokenizer(tokenizer, template_source="file")  # datatrove reads only tokenizer.json
    if eos is not None:
        declare_eos(loaded, eos)
    reports = []
    others = _others(open_store(folder), len(tasks))
    if others and not overwrite:
        raise ConfigError(
            f"the folder has files of more tasks ({others[0]}), which would be read with the new ones",
            file=os.fspath(folder),
            kind="exists",
            fix="Add --overwrite to remove them, or choose another folder.",
        )
    for number, files in enumerate(tasks):
        reports.append(
            tokenize(
                files,
                {"ds": join_url(os.fspath(folder), f"{number:05d}_unshuffled.ds")},
                tokenizer=loaded,
                tokenizer_name=os.fspath(tokenizer),
                text=column,
                eos=None if eos is None else AUTO,
                rule="always",
                template=eos is None,
                on_error=on_error,
                allow_empty=True,  # as in datatrove, a task without inputs writes an empty file
                workers=workers if files else 1,
                overwrite=overwrite,
                progress=progress,
            )
        )
    for path in others:
        open_store(folder).delete(path)
    return DealtReport(reports, list(ignored))


def _others(store: Store, tasks: int) -> list[str]:
    """Return the files of tasks with higher numbers, directly in the folder."""
    try:
        paths = [entry.path for entry in store.files()]
    except NotFound:
        return []
    found = [(_OUTPUT.match(path), path) for path in paths]
    return [path for match, path in found if match and int(match[1]) >= tasks]


def deal_files(dataset: str, tasks: int, pattern: str | None = None) -> tuple[list[list[DocumentFile]], list[str]]:
    """Return the files of lines of a folder (or one file) for each task, and the skipped files.

    Args:
        pattern: pattern of paths relative to the folder; see `feedmill.documents.find.listed_by_datatrove`.

    Raises:
        NotFound: there are no such files.
    """
    if "://" not in dataset and os.path.isfile(dataset):
        files, ignored = find_documents([dataset], unnamed=None).files, []
    else:
        found = {entry.path: entry for entry in open_store(dataset).files()}
        entries = [found[path] for path in (listed_by_datatrove(found, pattern) if pattern else found)]
        files = [DocumentFile(dataset, e.path, LINES, e.size, e.version) for e in entries if kind_of(e.path) == LINES]
        ignored = [entry.path for entry in entries if kind_of(entry.path) != LINES]
    if not files:
        raise NotFound(
            "the folder has no file of JSON lines" + (f" that matches {pattern!r}" if pattern else ""),
            file=dataset,
            kind="no-documents",
            fix="Pass a .jsonl file or a folder of them (.gz and .zst too).",
        )
    return [files[task::tasks] for task in range(tasks)], ignored


def deal_rows(dataset: str, split: str, tasks: int) -> list[list[DocumentFile]]:
    """Return the rows of a Hugging Face dataset on disk, or of a folder of Parquet files, for each task.

    Args:
        split: name of the split; for the splits of a folder of files, see `feedmill.formats.hub_splits`.

    Raises:
        NotFound: it does not exist, or has no such split.
        ConfigError: its documents are not in columns.
    """
    from feedmill.documents.columns import count_rows

    if "://" not in dataset and not os.path.exists(dataset):
        raise NotFound(
            "there is no such dataset on this machine, and nothing is downloaded",
            file=dataset,
            kind="not-found",
            fix="Save it with load_dataset(...).save_to_disk(folder), and pass the folder.",
        )
    if open_store(dataset).exists("dataset_dict.json"):
        dataset = join_url(dataset, split)
    files = find_documents([dataset], unnamed=None).files
    if any(file.kind not in ("arrow", "parquet") for file in files):
        raise ConfigError(
            "these documents are not stored in columns", file=dataset, kind="no-documents", fix="Use the form 'jsonl'."
        )
    files = _of_split(files, dataset, split)
    if tasks == 1:
        return [files]
    dealt: list[list[DocumentFile]] = [[] for _ in range(tasks)]
    before = 0
    for file in files:
        rows = count_rows(file)
        for task in range(tasks):
            first = (task - before) % tasks
            if first < rows:
                dealt[task].append(replace(file, rows=(first, tasks)))
        before += rows
    return dealt


def _of_split(files: list[DocumentFile], dataset: str, split: str) -> list[DocumentFile]:
    is_one = files[0].folder != dataset or open_store(dataset).exists("state.json")
    if is_one:  # a file, or a folder saved as one split
        return files
    paths = {file.path: file for file in files}
    splits = declared_splits(open_store(dataset), list(paths))
    if splits is None or not splits.files:
        splits = FolderSplits(by_split(list(paths), str))
    if split not in splits.files:
        raise unknown_split(dataset, split, splits)
    return [paths[path] for path in splits.files[split]]
