"""View 6: clusters of duplicates, the words in which two members differ, and duplicates source by source.

The clusters are those that verbs marked, or found here among the documents in memory if none did. ``dedupe --near``
writes the cluster of each document. Exact ``dedupe`` writes what is marked, and not of what it is a duplicate, so the
documents or paragraphs with the same text are a cluster. So are the documents with the same question of a benchmark,
as
``decontaminate`` writes them: the question is shown beside each of them.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.curation.attribute_set import read_manifest
from feedmill.curation.options import Neardedupe
from feedmill.documents.file import in_datasets
from feedmill.errors import FeedmillError, NotFound
from feedmill.web.charts import histogram
from feedmill.web.corpus import Corpus, NoDocuments, corpus_of, slot
from feedmill.web.documents import Span, marked_text
from feedmill.web.invisible import one_line
from feedmill.web.library import OpenItem
from feedmill.web.parts import next_step
from feedmill.web.state import State

MOST_NEAR, MOST_NEAR_BYTES = 20_000, 32 << 20
"""Documents, and bytes of their texts, among which near-duplicates are searched here."""
EXACT, NEAR, PARAGRAPHS, QUESTIONS = "exact", "near", "paragraphs", "questions"

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Clusters:
    """Groups of documents that are duplicates of each other.

    Attributes:
        name: in the address: that of the attribute set, or ``exact`` and ``near`` if found here.
        kind: exact, near, paragraphs or questions.
        written: whether a verb wrote them. `about` says how they were found.
        starts, members: cluster k is ``members[starts[k]:starts[k + 1]]``, document numbers in order; int64.
        marked: bool[members]: the verb marks the member, or it is not the first one.
        flagged: documents with marks, also those whose cluster is not in memory.
        report: what `dedupe --near` or `decontaminate` counted in its whole run.
        compared: the documents that were compared, int64; None for all.
        questions: name and beginning of the text of each question.
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
    questions: Sequence[tuple[str, str]] = ()

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
    documents, finders = corpus.documents, dict[str, Callable[[], Clusters]]()
    kinds = set()
    for name in documents.sets:
        manifest = _manifest(corpus, name) or {}
        options = manifest.get("options") if isinstance(manifest.get("options"), dict) else {}
        assert isinstance(options, dict)
        if f"{name}_cluster" in documents.columns:
            kinds.add(NEAR)
            finders[name] = lambda name=name, report=manifest.get("report"): _near_written(corpus, name, report)  # type: ignore[misc]
        elif manifest.get("verb") == "decontaminate":
            finders[name] = lambda name=name, manifest=manifest: _questions(corpus, name, manifest)  # type: ignore[misc]
        elif manifest.get("verb") == "dedupe" and options.get("attribute", name) in documents.set_of:
            attribute = str(options.get("attribute", name))
            if options.get("unit") == "documents":
                kinds.add(EXACT)
                key = str(options.get("key", "$.text"))
                finders[name] = lambda name=name, attribute=attribute, key=key: _exact_written(  # type: ignore[misc]
                    corpus, name, attribute, key
                )
            else:
                finders[name] = lambda name=name, attribute=attribute: _paragraphs(corpus, name, attribute)  # type: ignore[misc]
    if EXACT not in kinds:
        finders[EXACT] = lambda: _exact_here(corpus)
    if NEAR not in kinds:
        finders[NEAR] = lambda: _near_here(corpus)
    return finders


def _manifest(corpus: Corpus, name: str) -> dict[str, Any] | None:
    try:
        (inside,) = in_datasets(corpus.documents.files[:1])
        return read_manifest(inside.store(), name)
    except FeedmillError:
        return None


def _grouped(pairs: Iterable[tuple[Hashable, int]], least: int = 2) -> tuple[Ints, Ints]:
    """Return clusters of at least `least` documents from (what they share, document), the largest first."""
    return _joined([group for _, group in _groups(pairs) if len(group) >= least])


def _groups(pairs: Iterable[tuple[Hashable, int]]) -> list[tuple[Any, list[int]]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for key, number in pairs:
        groups[key].append(number)
    return sorted(groups.items(), key=lambda group: (-len(group[1]), group[1][0]))


def _joined(groups: Sequence[list[int]]) -> tuple[Ints, Ints]:
    starts = np.cumsum([0, *map(len, groups)], dtype=np.int64)
    return starts, np.array([number for group in groups for number in group], np.int64)


def _near_written(corpus: Corpus, name: str, report: Any) -> Clusters:
    labels = corpus.documents.columns[f"{name}_cluster"]
    marks = corpus.documents.columns.get(name, np.full(len(labels), np.nan)) > 0
    known = np.flatnonzero(np.isfinite(labels))
    starts, members = _grouped(zip(labels[known].tolist(), known.tolist(), strict=True))
    about = f"as dedupe --near wrote them to attributes/{name}"
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


def _questions(corpus: Corpus, name: str, manifest: dict[str, Any]) -> Clusters:
    """Return the documents that have the same question of a benchmark."""
    known = corpus.documents.questions.get(name, {})
    groups = _groups((question, number) for number, own in known.items() for question in dict.fromkeys(own))
    starts, members = _joined([group for _, group in groups])
    about = f"questions of benchmarks in documents, as decontaminate wrote them to attributes/{name}"
    texts, report = manifest.get("questions"), manifest.get("report")
    texts = texts if isinstance(texts, dict) else {}
    return Clusters(
        name,
        QUESTIONS,
        True,
        about,
        starts,
        members,
        np.ones(len(members), np.bool_),
        len(known),
        report if isinstance(report, dict) else None,
        questions=[(question, str(texts.get(question, ""))) for question, _ in groups],
    )


def _near_here(corpus: Corpus) -> Clusters:
    """Return near-duplicates with the options of `dedupe --near`, among documents from everywhere."""
    from feedmill.curation.near.graph import distinct
    from feedmill.curation.near.sketch import signatures
    from feedmill.kernels.hashing import near_pairs

    options = Neardedupe(())
    numbers = _spread(corpus)
    texts = [corpus.documents.text(number).encode("utf-8", "replace") for number in numbers.tolist()]
    arrays = signatures(texts, options)
    keys, digests, sets = arrays["keys"], arrays["digests"], arrays["sets"]
    begins = np.concatenate(([0], arrays["ends"][:-1])).astype(np.int64)
    lengths = np.diff(arrays["ends"], prepend=0).astype(np.int64)
    filled = np.flatnonzero(lengths)
    table, edges = np.empty(near_pairs.room(lengths), np.uint64), [np.empty((0, 2), np.int64)]
    for band in range(len(keys)):
        order = filled[np.argsort(keys[band][filled], kind="stable")]
        pairs, _ = near_pairs.candidates(
            keys[band][order], np.ones(len(order), np.bool_), digests[order], keys[:band][:, order]
        )
        both, shared = order[pairs], np.empty(len(pairs), np.int64)
        near_pairs.overlaps(sets, begins, lengths, both, table, shared)
        both = both[shared / (lengths[both].sum(axis=1) - shared) >= options.similar]
        equal = digests[both[:, 0]] == digests[both[:, 1]]
        edges.append(np.stack([both[:, 1], np.where(equal, ~both[:, 0], both[:, 0])], axis=1))
    labels = np.empty(len(texts), np.int64)
    near_pairs.settle(distinct(np.concatenate(edges)), 0, 0, np.ones(len(texts), np.uint8), labels)
    starts, members = _grouped(zip(labels.tolist(), numbers.tolist(), strict=True))
    marked = _not_first(starts, members)
    among = "" if len(numbers) == len(corpus) else f" among {len(numbers):,} documents from everywhere"
    about = f"found here{among} with the options of dedupe --near: no run of it is recorded beside them"
    return Clusters(NEAR, NEAR, False, about, starts, members, marked, int(marked.sum()), compared=numbers)


def _spread(corpus: Corpus) -> Ints:
    """Return documents at equal distances, as many as may be compared."""
    sizes = corpus.documents.columns.get("characters", np.zeros(len(corpus)))
    share = max(1.0, len(corpus) / MOST_NEAR, float(sizes.sum()) / MOST_NEAR_BYTES)
    return np.unique((np.arange(int(len(corpus) / share)) * share).astype(np.int64))


ROWS, MOST_MEMBERS = 50, 60
_finding = threading.Lock()


def duplicates(thing: OpenItem, state: State) -> dict[str, Any]:
    """Return the clusters of the documents as plain data, and one of them opened.

    Raises:
        ConfigError: the address has an unknown set or source, or an invalid number.
        NotFound: there is no such cluster or member.
    """
    try:
        corpus = corpus_of(thing)
    except NoDocuments as error:
        return {"name": thing.name, "path": thing.path, "absent": error.as_dict()}
    known = _known(thing, corpus)
    name = state.choice("set", known, next(iter(known)))
    clusters = _clusters(thing, corpus, name)
    source = state.choice("source", corpus.sources, "") if "source" in state else None
    chosen = _of_source(corpus, clusters, source)
    page = state.number("page", 1, least=1) or 1
    opened = state.number("cluster")
    return {
        "name": thing.name,
        "path": thing.path,
        "sample": corpus.sample,
        "next": _next(thing, corpus, clusters),
        "set": name,
        "sets": list(known),
        "kind": clusters.kind,
        "written": clusters.written,
        "about": clusters.about,
        "clusters": len(clusters),
        "duplicates": clusters.flagged,
        "report": _report(clusters),
        **_counted(thing, corpus, clusters),
        "source": source,
        "selected": len(chosen),
        "page": page,
        "pages": max(1, -(-len(chosen) // ROWS)),
        "rows": [_row(corpus, clusters, int(k)) for k in chosen[(page - 1) * ROWS : page * ROWS]],
        "opened": None if opened is None else _opened(corpus, clusters, opened, chosen, state),
    }


def _next(thing: OpenItem, corpus: Corpus, clusters: Clusters) -> dict[str, Any] | None:
    if not clusters.flagged:
        return next_step(
            "Nothing to drop here. See the lengths in tokens next.", href=f"/{thing.name}/tokens", label="Tokens"
        )
    share = f"{clusters.flagged / max(1, len(corpus)):.1%}"
    if not clusters.written:
        verb = "dedupe --near" if clusters.kind == NEAR else "dedupe"
        text = f"{share} of the documents here are duplicates. Mark them in all files:"
        return next_step(text, code=f"feedmill {verb} {thing.path}")
    column = next(
        (name for name in (clusters.name, f"spans of {clusters.name}") if name in corpus.documents.columns), None
    )
    text = f"{share} of the documents are marked."
    if column is None:
        return next_step(f"{text} Drop them with a filter:", code=f"exclude: ['$.attributes.{clusters.name}[0]']")
    query = State([(f"max.{column}", "0")]).link()
    return next_step(text, href=f"/{thing.name}/filters{query}", label="Copy the filter")


def written_sets(thing: OpenItem) -> list[str]:
    """Return the sets of clusters that verbs wrote beside the documents."""
    corpus = corpus_of(thing)
    return [name for name in _known(thing, corpus) if name in corpus.documents.sets]


def _known(thing: OpenItem, corpus: Corpus) -> dict[str, Any]:
    with _finding:
        if "_clusterings" not in thing.__dict__:
            thing.__dict__["_clusterings"] = find_clusters(corpus)
        data: dict[str, Any] = thing.__dict__["_clusterings"]
    return data


def _clusters(thing: OpenItem, corpus: Corpus, name: str) -> Clusters:
    """Return clusters by name, which are found when they are first asked for."""
    makers = _known(thing, corpus)
    with _finding:
        if not isinstance(makers[name], Clusters):
            makers[name] = makers[name]()
        clusters: Clusters = makers[name]
    return clusters


def _counted(thing: OpenItem, corpus: Corpus, clusters: Clusters) -> dict[str, Any]:
    """Return what is the same on every page of some clusters, which is counted once."""
    known = thing.__dict__.setdefault("_cluster_counts", {})
    if clusters.name not in known:
        known[clusters.name] = {
            "members": len(np.unique(clusters.members)),
            "elsewhere": clusters.flagged - len(np.unique(clusters.members[clusters.marked])),
            "compared": len(corpus) if clusters.compared is None else len(clusters.compared),
            "sizes": histogram(clusters.sizes) if len(clusters) else None,
            "sources": _sources(corpus, clusters),
        }
    data: dict[str, Any] = known[clusters.name]
    return data


def _report(clusters: Clusters) -> dict[str, Any] | None:
    """Return what the whole run counted: `NearReport.sources` are ``folders``, and `DecontaminateReport.benchmarks`."""
    known = clusters.report
    if known is None:
        return None
    asked = clusters.kind == QUESTIONS
    data = {name: known.get(name) for name in ("documents", *(["flagged"] if asked else ["duplicates", "clusters"]))}
    if not all(isinstance(value, int) for value in data.values()):
        return None
    return {**data, **({"benchmarks": known.get("benchmarks", [])} if asked else {"folders": known.get("sources", [])})}


def _of_source(corpus: Corpus, clusters: Clusters, source: str | None) -> Any:
    """Return the numbers of the clusters, or of those with a document of a source."""
    every = np.arange(len(clusters))
    if source is None:
        return every
    inside = corpus.source[clusters.members] == corpus.sources.index(source)
    return every[np.add.reduceat(inside, clusters.starts[:-1]) > 0] if len(clusters) else every


def _sources(corpus: Corpus, clusters: Clusters) -> list[dict[str, Any]]:
    """Return for each source its documents, those in clusters, those marked, and of which source they are duplicates.

    ``of[j]`` counts the marked documents of this source whose cluster keeps a document of source j.
    """
    count = len(corpus.sources)
    whole = np.bincount(
        corpus.source if clusters.compared is None else corpus.source[clusters.compared], minlength=count
    )
    inside = np.bincount(corpus.source[np.unique(clusters.members)], minlength=count)
    kept = np.repeat(clusters.first(), clusters.sizes) if len(clusters) else np.empty(0, np.int64)
    copies = clusters.marked & (clusters.members != kept)
    table = np.zeros((count, count), np.int64)
    np.add.at(table, (corpus.source[clusters.members[copies]], corpus.source[kept[copies]]), 1)
    marked = np.bincount(corpus.source[np.unique(clusters.members[clusters.marked])], minlength=count)
    top = max(1, int(table.max(initial=0)))
    return [
        {
            "name": name,
            "slot": slot(number, count),
            "documents": int(whole[number]),
            "members": int(inside[number]),
            "marked": int(marked[number]),
            "of": [{"count": n, "heat": (n > 0) + min(2, 3 * n // (top + 1))} for n in table[number].tolist()],
        }
        for number, name in enumerate(corpus.sources)
    ]


def _row(corpus: Corpus, clusters: Clusters, number: int) -> dict[str, Any]:
    members, marked = clusters.of(number)
    sources = np.unique(corpus.source[members])
    question, text = clusters.questions[number] if clusters.questions else ("", "")
    return {
        "cluster": number,
        "documents": len(members),
        "marked": int(marked.sum()),
        "question": question,
        "text": one_line(text if question else corpus.documents.text(int(members[0]))),
        "sources": [{"name": corpus.sources[s], "slot": slot(s, len(corpus.sources))} for s in sources.tolist()],
    }


def _opened(corpus: Corpus, clusters: Clusters, number: int, chosen: Any, state: State) -> dict[str, Any]:
    if number >= len(clusters):
        raise NotFound(f"there is no cluster {number:,}: there are {len(clusters):,}", kind="no-page")
    members, marked = clusters.of(number)
    questions = clusters.kind == QUESTIONS
    kept = members[~marked]
    first = int(kept[0] if len(kept) else members[0])
    second = first if questions else next((int(member) for member in members if member != first), first)
    b = _member(members, state.number("b", second))
    a = b if questions else _member(members, state.number("a", first))
    place = np.searchsorted(chosen, number)
    there = place < len(chosen) and chosen[place] == number
    beside = [chosen[p] if there and 0 <= p < len(chosen) else None for p in (place - 1, place + 1)]
    others = [int(member) for member in members if questions or member != a]
    at = others.index(b) if b in others else None
    return {
        "cluster": number,
        "documents": len(members),
        "members": [
            _described(corpus, int(member), bool(mark), a, b)
            for member, mark in zip(members[:MOST_MEMBERS], marked, strict=False)
        ],
        "more": max(0, len(members) - MOST_MEMBERS),
        "numbers": members.tolist() if len(members) > MOST_MEMBERS else [],
        "a": corpus.excerpt(a, 0),
        "b": corpus.excerpt(b, 0),
        "question": _beside(corpus, clusters, number, b) if questions else None,
        "diff": diff(corpus.documents.text(a), corpus.documents.text(b)) if a != b else None,
        "alone": clusters.kind == PARAGRAPHS and len(members) == 1,
        "previous": None if beside[0] is None else int(beside[0]),
        "next": None if beside[1] is None else int(beside[1]),
        "previous_b": others[at - 1] if at else None,
        "next_b": others[at + 1] if at is not None and at + 1 < len(others) else None,
    }


AROUND = 300
"""Characters of a document that are shown before and after a question."""


def _beside(corpus: Corpus, clusters: Clusters, cluster: int, number: int) -> dict[str, Any]:
    """Return a question, and the part of a document that has it, in pieces of which some are marked."""
    name, text = clusters.questions[cluster]
    whole, scores = corpus.documents.text(number), corpus.documents.scores(number)
    names = corpus.documents.questions[clusters.name][number]
    own = [span for span, of in zip(_spans(scores.get(clusters.name)), names, strict=False) if span and of == name]
    answered = {(span.start, span.end) for span in _spans(scores.get(f"{clusters.name}_answered")) if span}
    low = max(0, min((span.start for span in own), default=0) - AROUND)
    high = min(len(whole), max((span.end for span in own), default=0) + AROUND)
    near = [replace(span, start=span.start - low, end=span.end - low) for span in own]
    pieces, _ = marked_text(whole[low:high], near, high - low)
    shown = [_piece("hit" if piece["names"] else "same", [piece["text"]]) for piece in pieces]
    return {
        "name": name,
        "text": text,
        "share": max((span.score for span in own), default=0.0),
        "answered": any((span.start, span.end) in answered for span in own),
        "pieces": shown,
        "before": low,
        "after": len(whole) - high,
    }


def _spans(values: Any) -> list[Span | None]:
    """Return the spans of an attribute; None for what is none."""
    spans = list[Span | None]()
    for value in values if isinstance(values, list) else ():
        try:
            begin, end, score = value
            spans.append(Span(int(begin), int(end), "question", float(score)))
        except (TypeError, ValueError, OverflowError):
            spans.append(None)
    return spans


def _member(members: Any, number: int | None) -> int:
    if number not in members:
        raise NotFound(f"document {number:,} is not in this cluster", kind="no-page")
    assert number is not None
    return number


def _described(corpus: Corpus, number: int, marked: bool, a: int, b: int) -> dict[str, Any]:
    return {
        **{key: value for key, value in corpus.excerpt(number, 0).items() if key not in ("text", "more")},
        "characters": len(corpus.documents.text(number)),
        "marked": marked,
        "is": "a" if number == a else "b" if number == b else None,
    }


MOST_WORDS = 2_000
"""Words between the common beginning and the common end of two texts that are compared."""
_MOST_TEXT, _MOST_PIECE = 200_000, 4_000  # characters of a text that are compared, and of a piece that are shown
_AROUND = 30  # words that are the same, shown on each side of a difference
_WORD = re.compile(r"\s*\S+|\s+$")


def diff(a: str, b: str) -> dict[str, Any]:
    """Return the differences of two texts as plain data.

    Returns:
        ``pieces``: ``kind`` is "same", "a" (only in the first text), "b", or "hidden"; ``text``, of a hidden piece its
        number of words; and ``cut``, the characters of a very long piece that are left out. ``same``, ``only_a`` and
        ``only_b`` are numbers of words. ``left_out`` words, and ``unread`` characters, of both texts were not compared.
    """
    one, other = _WORD.findall(a[:_MOST_TEXT]), _WORD.findall(b[:_MOST_TEXT])
    keys, others = [word.split() for word in one], [word.split() for word in other]
    least = min(len(one), len(other))
    head = next((n for n in range(least) if keys[n] != others[n]), least)
    tail = next((n for n in range(least - head) if keys[-1 - n] != others[-1 - n]), least - head)
    stops = len(one) - tail, len(other) - tail
    middle = min(stops[0], head + MOST_WORDS), min(stops[1], head + MOST_WORDS)
    left_out = stops[0] - middle[0] + stops[1] - middle[1]
    pieces = _merged(
        [("same", word) for word in one[:head]]
        + _differences(one[head : middle[0]], other[head : middle[1]])
        + ([("same", word) for word in one[stops[0] :]] if not left_out else [])
    )
    counts = {kind: sum(len(words) for of, words in pieces if of == kind) for kind in ("same", "a", "b")}
    return {
        "pieces": _shortened(pieces),
        "same": counts["same"],
        "only_a": counts["a"],
        "only_b": counts["b"],
        "left_out": left_out + (2 * tail if left_out else 0),
        "unread": sum(max(0, len(text) - _MOST_TEXT) for text in (a, b)),
    }


def _differences(a: list[str], b: list[str]) -> list[tuple[str, str]]:
    """Return the words of both texts in order, each with its kind."""
    differences: list[tuple[str, str]] = []
    matcher = SequenceMatcher(None, [word.strip() for word in a], [word.strip() for word in b])
    for tag, first, last, begin, end in matcher.get_opcodes():
        if tag == "equal":
            differences += [("same", word) for word in a[first:last]]
        else:
            differences += [("a", word) for word in a[first:last]] + [("b", word) for word in b[begin:end]]
    return differences


def _merged(words: list[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Join neighbors of one kind."""
    merged: list[tuple[str, list[str]]] = []
    for kind, word in words:
        if not merged or merged[-1][0] != kind:
            merged.append((kind, []))
        merged[-1][1].append(word)
    return merged


def _shortened(pieces: list[tuple[str, list[str]]]) -> list[dict[str, Any]]:
    """Return the pieces, with words that are the same hidden where they are far from a difference."""
    shortened: list[dict[str, Any]] = []
    for place, (kind, words) in enumerate(pieces):
        before = _AROUND if place else 0
        after = _AROUND if place + 1 < len(pieces) else 0
        hidden = len(words) - before - after
        if kind != "same" or hidden < _AROUND or len(pieces) == 1:
            shortened.append(_piece(kind, words))
            continue
        shortened += [_piece(kind, words[:before])] if before else []
        shortened.append({"kind": "hidden", "text": hidden, "cut": 0})
        shortened += [_piece(kind, words[-after:])] if after else []
    return shortened


def _piece(kind: str, words: list[str]) -> dict[str, Any]:
    text = "".join(words)
    return {"kind": kind, "text": text[:_MOST_PIECE], "cut": max(0, len(text) - _MOST_PIECE)}
