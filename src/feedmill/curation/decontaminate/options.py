"""Options and report of decontamination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from feedmill.errors import ConfigError
from feedmill.jobs.dry_run import JobReport
from feedmill.storage.base import refuse_non_utf8

ROLES = ("question", "choices", "answer", "id")


@dataclass(frozen=True, kw_only=True, slots=True)
class DecontaminateOptions:
    """Options of decontamination.

    Args:
        name: Folder of the attributes and key of the spans.
        threshold: Minimum share of a question's words that a document has, in their order, above 0.5 and up to 1.
        ngram: Words of the n-grams by which questions are looked for. Questions with fewer words are not found, and
            those with fewer than twice as many only as they are.
        common: Share of the documents from which an n-gram is a common phrase, which is no evidence.
        fields: Field or path of each of `ROLES` in the benchmarks; by default the usual names are recognized.
        documents_folder: Name of the folder of documents.
    """

    name: str = "leaked"
    threshold: float = 0.75
    ngram: int = 5
    common: float = 0.005
    fields: Mapping[str, str] = field(default_factory=dict)
    documents_folder: str = "documents"

    def __post_init__(self) -> None:
        refuse_non_utf8(self.name)
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise _bad(f"{self.name!r} is not a valid name of an attribute set", "Use a plain name.")
        if not 0.5 < self.threshold <= 1:
            raise _bad(f"the threshold must be above 0.5 and up to 1, not {self.threshold}", "Change the threshold.")
        if not 3 <= self.ngram <= 50:
            raise _bad(f"an n-gram must have 3 to 50 words, not {self.ngram}", "Use 3 to 50.")
        if not 0 < self.common <= 1:
            raise _bad(f"the share of common n-grams must be above 0 and up to 1, not {self.common}", "Change it.")
        for role in self.fields:
            if role not in ROLES:
                raise _bad(f"unknown part of a question {role!r}", f"Use {', '.join(ROLES)}.")

    def as_dict(self) -> dict[str, Any]:
        """Return the options as plain data."""
        return asdict(self)


@dataclass(slots=True)
class DecontaminateReport(JobReport):
    """Report of decontamination.

    Attributes:
        files, documents: Numbers of the run's input.
        flagged: Documents with at least one leaked question.
        matches: Leaked questions in documents, each pair counted once.
        benchmarks: For each benchmark: its ``questions``; those that cannot be found, because they are ``empty``,
            ``short``, or made of ``common`` phrases only; those ``leaked``, and of these ``with_answer``; ``documents``
            with one of them; and ``examples``.
        skipped: Whether an earlier run had done everything.
    """

    name: str
    files: int = 0
    documents: int = 0
    flagged: int = 0
    matches: int = 0
    benchmarks: list[dict[str, Any]] = field(default_factory=list)
    skipped: bool = False
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        leaked = sum(one["leaked"] for one in self.benchmarks)
        questions = sum(one["questions"] for one in self.benchmarks)
        return (
            f"{leaked:,} of {questions:,} questions are in {self.flagged:,} of {self.documents:,} documents,"
            f" in attributes/{self.name}"
        )


def _bad(what: str, fix: str) -> ConfigError:
    return ConfigError(what, kind="bad-option", fix=fix)
