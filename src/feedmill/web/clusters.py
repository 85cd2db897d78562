"""Clusters of duplicates among documents in memory: those that verbs marked, or found here if none did.

``neardedupe`` writes the cluster of each document. ``dedupe`` writes what is marked, and not of what it is a duplicate,
so the documents or paragraphs with the same text are a cluster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.curation.attribute_set import read_manifest
from feedmill.curation.near.options import NearOptions
from feedmill.documents.file import in_datasets
from feedmill.errors import FeedmillError
from feedmill.web.corpus import Corpus

MOST_NEAR, MOST_NEAR_BYTES = 20_000, 32 << 20
"""Documents, and bytes of their texts, among which near-duplicates are searched here."""
EXACT, NEAR, PARAGRAPHS = "exact", "near", "paragraphs"

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Clusters:
    """Groups of documents that are duplicates of each other.

    Attributes:
        name: in the address: that of the attribute set, or ``exact`` and ``near`` if found here.
        kind: exact, near or paragraphs.
        written: whether a verb wrote them. `about` says how they were found.
        starts, members: cluster k is ``members[starts[k]:starts[k + 1]]``, document numbers in order; int64.
        marked: bool[members]: the verb marks the member, or it is not the first one.
        flagged: documents with marks, also those whose cluster is not in memory.
        report: what `neardedupe` counted in its whole run.
        compared: the documents that were compared, int64; None for all.
    """

    name: str
    kind: str
    written: bool
    about: str
    starts: Ints
    members: Ints
    marked: Bools
    flagged: int
    report: dict[str, Any] | None = None
    compared: Ints | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def sizes(self) -> Ints:
        """Documents of each cluster, int64[clusters]."""
        return np.diff(self.starts)

    def of(self, cluster: int) -> tuple[Ints, Bools]:
        """Return the documents of a cluster, and which are marked."""
        own = slice(*self.starts[cluster : cluster + 2].tolist())
        return self.members[own], self.marked[own]

    def first(self) -> Ints:
        """Return the document of each cluster that is kept: the first unmarked one, else the first."""
        order = np.lexsort((np.arange(len(self.members)), self.marked, np.repeat(np.arange(len(self)), self.sizes)))
        return self.members[order[self.starts[:-1]]]


def find_clusters(corpus: Corpus) -> dict[str, Callable[[], Clusters]]:
    """Return how to find clusters, by name: those that verbs wrote first, then those that are found here."""
    documents, found = corpus.documents, dict[str, Callable[[], Clusters]]()
    kinds = set()
    for name in documents.sets:
        manifest = _manifest(corpus, name) or {}
        options = manifest.get("options") if isinstance(manifest.get("options"), dict) else {}
        assert isinstance(options, dict)
        if f"{name}_cluster" in documents.columns:
            kinds.add(NEAR)
            found[name] = lambda name=name, report=manifest.get("report"): _near_written(corpus, name, report)  # type: ignore[misc]
        elif manifest.get("verb") == "dedupe" and options.get("attribute", name) in documents.set_of:
            attribute = str(options.get("attribute", name))
            if options.get("unit") == "documents":
                kinds.add(EXACT)
                key = str(options.get("key", "$.text"))
                found[name] = lambda name=name, attribute=attribute, key=key: _exact_written(  # type: ignore[misc]
                    corpus, name, attribute, key
                )
            else:
                found[name] = lambda name=name, attribute=attribute: _paragraphs(corpus, name, attribute)  # type: ignore[misc]
    if EXACT not in kinds:
        found[EXACT] = lambda: _exact_here(corpus)
    if NEAR not in kinds:
        found[NEAR] = lambda: _near_here(corpus)
    return found


def _manifest(corpus: Corpus, name: str) -> dict[str, Any] | None:
    try:
        (inside,) = in_datasets(corpus.documents.files[:1])
        return read_manifest(inside.store(), name)
    except FeedmillError:
        return None


def _grouped(pairs: Iterable[tuple[Hashable, int]], least: int = 2) -> tuple[Ints, Ints]:
    """Return clusters of at least `least` documents from (what they share, document), the largest first."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for key, number in pairs:
        groups[key].append(number)
    kept = sorted((group for group in groups.values() if len(group) >= least), key=lambda one: (-len(one), one[0]))
    starts = np.cumsum([0, *map(len, kept)], dtype=np.int64)
    return starts, np.array([number for group in kept for number in group], np.int64)


def _near_written(corpus: Corpus, name: str, report: Any) -> Clusters:
    labels = corpus.documents.columns[f"{name}_cluster"]
    marks = corpus.documents.columns.get(name, np.full(len(labels), np.nan)) > 0
    known = np.flatnonzero(np.isfinite(labels))
    starts, members = _grouped(zip(labels[known].tolist(), known.tolist(), strict=True))
    about = f"as neardedupe wrote them to attributes/{name}"
    return Clusters(
        name,
        NEAR,
        True,
        about,
        starts,
        members,
        marks[members],
        int(marks.sum()),
        report if isinstance(report, dict) else None,
    )


def _exact_written(corpus: Corpus, name: str, attribute: str, key: str) -> Clusters:
    marks = corpus.documents.columns.get(attribute, np.zeros(len(corpus))) > 0
    starts, members = _grouped(_same(corpus, key))
    about = f"documents with the same {key}; marks as dedupe wrote them to attributes/{name}"
    return Clusters(name, EXACT, True, about, starts, members, marks[members], int(marks.sum()))


def _same(corpus: Corpus, key: str) -> Iterable[tuple[Hashable, int]]:
    if key == "$.text":
        return ((digest, number) for number, digest in enumerate(corpus.digests.tolist()) if digest)
    from feedmill.documents.expressions import compile_path

    run = compile_path(key)
    values = ((run(corpus.documents.row(number)), number) for number in range(len(corpus)))
    return ((str(value[0]), number) for value, number in values if value)


def _exact_here(corpus: Corpus) -> Clusters:
    starts, members = _grouped(_same(corpus, "$.text"))
    marked = _not_first(starts, members)
    about = "documents with the same text, found here: no run of dedupe by documents is recorded beside them"
    return Clusters(EXACT, EXACT, False, about, starts, members, marked, int(marked.sum()))


def _not_first(starts: Ints, members: Ints) -> Bools:
    marked = np.ones(len(members), np.bool_)
    marked[starts[:-1]] = False
    return marked


def _paragraphs(corpus: Corpus, name: str, attribute: str) -> Clusters:
    """Return the documents in which the same paragraph is marked. One of them may be in many clusters."""
    pairs, flagged = [], 0
    for number in range(len(corpus)):
        spans = corpus.documents.scores(number).get(attribute)
        if not isinstance(spans, list) or not spans:
            continue
        text, flagged = corpus.documents.text(number), flagged + 1
        shared = {text[span[0] : span[1]].strip() for span in spans if len(span) == 3 and span[2] > 0}
        pairs += [(xxhash.xxh3_64_intdigest(part.encode("utf-8", "surrogatepass")), number) for part in sorted(shared)]
    starts, members = _grouped(pairs, least=1)
    about = f"documents in which the same paragraph is marked, as dedupe wrote them to attributes/{name}"
    return Clusters(name, PARAGRAPHS, True, about, starts, members, np.ones(len(members), np.bool_), flagged)


def _near_here(corpus: Corpus) -> Clusters:
    """Return near-duplicates with the options of `neardedupe`, among documents from everywhere."""
    from feedmill.curation.near.sketch import signatures
    from feedmill.kernels.hashing import near_pairs_compiled as compiled

    options = NearOptions()
    numbers = _spread(corpus)
    texts = [corpus.documents.text(number).encode("utf-8", "replace") for number in numbers.tolist()]
    arrays = signatures(texts, options)
    keys, digests, sets = arrays["keys"], arrays["digests"], arrays["sets"]
    begins = np.concatenate(([0], arrays["ends"][:-1])).astype(np.int64)
    lengths = np.diff(arrays["ends"], prepend=0).astype(np.int64)
    filled = np.flatnonzero(lengths)
    parents, edges = np.arange(len(texts)), [np.empty((0, 2), np.int64)]
    for band in range(len(keys)):
        order = filled[np.argsort(keys[band][filled], kind="stable")]
        pairs, _ = compiled.candidates(
            keys[band][order], np.ones(len(order), np.bool_), digests[order], keys[:band][:, order]
        )
        both = order[pairs]
        edges.append(compiled.similar(sets, begins, lengths, both, both, options.threshold, parents))
    labels = compiled.components(len(texts), np.concatenate(edges))
    starts, members = _grouped(zip(labels.tolist(), numbers.tolist(), strict=True))
    marked = _not_first(starts, members)
    among = "" if len(numbers) == len(corpus) else f" among {len(numbers):,} documents from everywhere"
    about = f"found here{among} with the options of neardedupe: no run of it is recorded beside them"
    return Clusters(NEAR, NEAR, False, about, starts, members, marked, int(marked.sum()), compared=numbers)


def _spread(corpus: Corpus) -> Ints:
    """Return documents at equal distances, as many as may be compared."""
    sizes = corpus.documents.columns.get("characters", np.zeros(len(corpus)))
    share = max(1.0, len(corpus) / MOST_NEAR, float(sizes.sum()) / MOST_NEAR_BYTES)
    return np.unique((np.arange(int(len(corpus) / share)) * share).astype(np.int64))
