"""View 6: clusters of duplicates, the words in which two members differ, and duplicates source by source."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from feedmill.errors import NotFound
from feedmill.web.charts import histogram
from feedmill.web.clusters import PARAGRAPHS, Clusters, find_clusters
from feedmill.web.corpus import Corpus, NoDocuments, corpus_of, slot
from feedmill.web.library import Thing
from feedmill.web.marks import one_line
from feedmill.web.state import State
from feedmill.web.worddiff import diff

ROWS, MOST_MEMBERS = 50, 60
_finding = threading.Lock()


def duplicates(thing: Thing, state: State) -> dict[str, Any]:
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


def _known(thing: Thing, corpus: Corpus) -> dict[str, Any]:
    with _finding:
        if "_clusterings" not in thing.__dict__:
            thing.__dict__["_clusterings"] = find_clusters(corpus)
        found: dict[str, Any] = thing.__dict__["_clusterings"]
    return found


def _clusters(thing: Thing, corpus: Corpus, name: str) -> Clusters:
    """Return clusters by name, which are found when they are first asked for."""
    makers = _known(thing, corpus)
    with _finding:
        if not isinstance(makers[name], Clusters):
            makers[name] = makers[name]()
        found: Clusters = makers[name]
    return found


def _counted(thing: Thing, corpus: Corpus, clusters: Clusters) -> dict[str, Any]:
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
    found: dict[str, Any] = known[clusters.name]
    return found


def _report(clusters: Clusters) -> dict[str, Any] | None:
    """Return what the whole run counted."""
    if clusters.report is None:
        return None
    names = ("documents", "duplicates", "clusters")
    found = {name: clusters.report.get(name) for name in names}
    return found if all(isinstance(value, int) for value in found.values()) else None


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
    return {
        "cluster": number,
        "documents": len(members),
        "marked": int(marked.sum()),
        "text": one_line(corpus.documents.text(int(members[0]))),
        "sources": [{"name": corpus.sources[s], "slot": slot(s, len(corpus.sources))} for s in sources.tolist()],
    }


def _opened(corpus: Corpus, clusters: Clusters, number: int, chosen: Any, state: State) -> dict[str, Any]:
    if number >= len(clusters):
        raise NotFound(f"there is no cluster {number:,}: there are {len(clusters):,}", kind="no-cluster")
    members, marked = clusters.of(number)
    kept = members[~marked]
    first = int(kept[0] if len(kept) else members[0])
    second = next((int(one) for one in members if one != first), first)
    a, b = (_member(members, state.number(name, default)) for name, default in (("a", first), ("b", second)))
    place = np.searchsorted(chosen, number)
    there = place < len(chosen) and chosen[place] == number
    beside = [chosen[p] if there and 0 <= p < len(chosen) else None for p in (place - 1, place + 1)]
    others = [int(one) for one in members if one != a]
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
        "diff": diff(corpus.documents.text(a), corpus.documents.text(b)) if a != b else None,
        "alone": clusters.kind == PARAGRAPHS and len(members) == 1,
        "previous": None if beside[0] is None else int(beside[0]),
        "next": None if beside[1] is None else int(beside[1]),
        "previous_b": others[at - 1] if at else None,
        "next_b": others[at + 1] if at is not None and at + 1 < len(others) else None,
    }


def _member(members: Any, number: int | None) -> int:
    if number not in members:
        raise NotFound(f"document {number:,} is not in this cluster", kind="no-member")
    assert number is not None
    return number


def _described(corpus: Corpus, number: int, marked: bool, a: int, b: int) -> dict[str, Any]:
    return {
        **{key: value for key, value in corpus.excerpt(number, 0).items() if key not in ("text", "more")},
        "characters": len(corpus.documents.text(number)),
        "marked": marked,
        "is": "a" if number == a else "b" if number == b else None,
    }
