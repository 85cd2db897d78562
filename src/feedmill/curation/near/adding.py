"""Add a dump to a folder of signatures: sign its new files, compare them with all documents, and publish the result.

Connect similar pairs to clusters of documents, and choose the document to keep of each.

The decisions of earlier dumps never change. Their documents do not become duplicates later, and their clusters are not
merged. A new document that is similar to two clusters of earlier dumps joins the one that begins first.

Pairs that other pairs connect are not among the edges, and which pairs those are depends on the ranges. So the result
depends only on which documents are connected, also through documents of earlier dumps. Up to `stars.EDGES`, after
reduction to a spanning forest, are connected here; more are by ranges of documents (`curation.near.stars`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from feedmill.curation.attribute_set import fingerprint
from feedmill.curation.near import covering, join, keys, labels, sketch, stars
from feedmill.curation.near.dumps import Dumps
from feedmill.curation.near.graph import NODES, Ranges
from feedmill.curation.near.options import NearReport
from feedmill.curation.near.parallel import map_units, spread_files
from feedmill.curation.near.stars import Graph, Stage, connected, contracted, read_edges
from feedmill.curation.near.view import Ints, View, clusters_name, open_view
from feedmill.curation.options import COVERED, LONGEST, Neardedupe
from feedmill.documents.file import DocumentFile
from feedmill.errors import ConfigError
from feedmill.formats.arrays import write_arrays
from feedmill.formats.signatures import damaged, dump_name, read_arrays, write_record
from feedmill.jobs.engine import Where
from feedmill.jobs.memory import sized
from feedmill.jobs.progress import Progress
from feedmill.structs import convert_as

MOST_DOCUMENTS = 1 << 32
"""A dump has fewer documents than this."""


class _Found(msgspec.Struct):
    """Fields of `NearReport` that the record of a dump stores."""

    added: int
    empty: int
    candidates: int
    left_out: int
    clusters: int
    sizes: dict[str, int]
    largest: list[dict[str, Any]]
    warnings: list[str]


def add_dump(
    dumps: Dumps,
    files: Sequence[DocumentFile],
    options: Neardedupe,
    report: NearReport,
    run: str,
    recorded: bool,
    room: int,
) -> None:
    """Sign the files that are not in the folder yet, find similar documents, and add the files as a dump.

    If the folder has all files, no dump is added. Finished work of an interrupted run is reused.

    Args:
        report: Receives the results.
        run: Fingerprint of the run. If the same run added the last dump but did not finish, its results are reported.
        room: Memory of a task; see `feedmill.jobs.memory`.

    Raises:
        ConfigError: A file changed after it was added.
        DataError: A row is invalid.
    """
    tasks = _unknown(dumps, files, options, room)
    keep = frozenset(task.fingerprint for task in tasks)
    before = len(report.warnings)
    if tasks:
        plan = _plan_print(dumps, tasks)
        dumps.forget_work(keep | {plan})
        sizes = [task.file.size for task in tasks]
        with Progress.of_files("reading", sizes, options.progress) as bar:
            where = Where("reading", plan, dumps.store, last=False)
            sketched = spread_files(sketch.sketch, tasks, sizes, workers=options.workers, progress=bar, where=where)
        record = _plan(dumps, tasks, sketched, plan)
        _warn_of_copies(dumps, record, report)
        write_record(dumps.store, f"{record['folder']}/plan.json", record)
        stage = partial(_run_stage, dumps, record, options)
        joins, sizes = _compare(dumps, record, options, report, room, stage)
        if options.removal == COVERED:
            # Then each part decides by itself.
            few = sum(sizes) <= sized(stars.EDGES, room) and record["rows"] <= sized(NODES, room)
            found, size = covering.cover(joins, sum(sizes), options.keep, _at_once if few else stage)
        else:
            view, paths = joins[0].view, [task.path for task in joins]
            found, size = find_clusters(dumps.folder, view, paths, sizes, options.keep, stage)
        for name, value in found.items():
            setattr(report, name, value)
        if size:
            record["clusters"] = size
        report.added, report.empty = record["rows"], sum(one.empty for one in sketched)
        results = {name: getattr(report, name) for name in _Found.__struct_fields__}
        record |= {"run": run, "found": {**results, "warnings": report.warnings[before:]}}
        write_record(dumps.store, dump_name(len(dumps.records)), record)
        dumps.records.append(record)
    elif not recorded and dumps.records and dumps.records[-1].get("run") == run:  # killed after it added the dump
        for name, value in _found(dumps).items():
            setattr(report, name, [*report.warnings, *value] if name == "warnings" else value)
    report.known = dumps.documents


def _found(dumps: Dumps) -> dict[str, Any]:
    """Return the results of the run that added the last dump."""
    try:
        return msgspec.structs.asdict(convert_as(dumps.records[-1].get("found"), _Found))
    except msgspec.ValidationError as error:
        raise damaged(dumps.store, dump_name(len(dumps.records) - 1), str(error)) from None


def _unknown(dumps: Dumps, files: Sequence[DocumentFile], options: Neardedupe, room: int) -> list[sketch.SketchTask]:
    known, tasks = dumps.known(), []
    for file in files:
        task = sketch.SketchTask(file, options, dumps.folder, room)
        place = known.get(task.location)
        if place is None:
            tasks.append(task)
        elif place.record["print"] != task.fingerprint:
            raise ConfigError(
                "the file has changed since its signatures were made: earlier decisions cannot be changed",
                file=file.name,
                kind="changed",
                fix="Put new documents into a new file, or make new signatures in another folder.",
            )
    return tasks


def _plan_print(dumps: Dumps, tasks: Sequence[sketch.SketchTask]) -> str:
    # Unfinished work of another room has other ranges. Only signatures are reused from it.
    before = [record["print"] for record in dumps.records]
    return fingerprint(before, [task.fingerprint for task in tasks], tasks[0].options.signature(), tasks[0].room)


def _plan(
    dumps: Dumps, tasks: Sequence[sketch.SketchTask], sketched: Sequence[sketch.Sketched], plan: str
) -> dict[str, Any]:
    """Return the record of the dump to add."""
    files = [
        {
            "location": task.location,
            "name": task.file.name,
            "size": task.file.size,
            "version": task.file.version,
            "print": task.fingerprint,
            "rows": one.rows,
            "ids": one.ids,
            "digest": one.digest,
            "xxh3": one.xxh3,
            "segments": one.segments,
        }
        for task, one in zip(tasks, sketched, strict=True)
    ]
    rows = sum(one.rows for one in sketched)
    if rows >= MOST_DOCUMENTS:
        raise ConfigError(
            f"too many documents for one run: {rows:,}", fix="Add them in several runs, with --signatures."
        )
    ranges = max(1, -(-rows // sized(join.RANGE, tasks[0].room)))
    place = {"print": plan, "folder": f"dumps/{plan}"}
    return {"first": dumps.documents, "rows": rows, "ranges": ranges, **place, "files": files}


def _warn_of_copies(dumps: Dumps, record: dict[str, Any], report: NearReport) -> None:
    digests = {file["digest"]: file["location"] for old in dumps.records for file in old["files"] if file["rows"]}
    for file in record["files"]:
        if file["digest"] in digests:
            report.warnings.append(
                f"{file['name']} has the documents of {digests[file['digest']]}: all of them count as duplicates."
                " If the file was moved, make new signatures in another folder"
            )


def _compare(
    dumps: Dumps, record: dict[str, Any], options: Neardedupe, report: NearReport, room: int, stage: Stage
) -> tuple[list[join.JoinTask], list[int]]:
    """Compare the new documents. Return the tasks that did, and the number of similar pairs of each."""
    parts, bands = join.ranges(record["ranges"]), options.shape[0]
    place, files = (dumps.folder, len(dumps.records), record["folder"]), 0
    if len(parts) > 1:
        bounds = tuple(high for _, high in parts)
        segments = keys.groups(open_view(*place, room))
        ordering = [keys.KeysTask(*place, n, low, high, bands, bounds, room) for n, (low, high) in enumerate(segments)]
        files = len(list(stage(keys.order_keys, ordering, "ordering")))
    if options.removal == COVERED and options.keep == LONGEST:
        few = record["rows"] <= sized(NODES, room)
        list((_at_once if few else stage)(keys.rank, [keys.RankTask(*place, room)], "ranking"))
    tasks = [
        join.JoinTask(*place, options.similar, band, part, low, high, files, options.removal, options.keep, room)
        for band in range(bands)
        for part, (low, high) in enumerate(parts)
    ]
    sizes = []
    with Progress("comparing", len(tasks), "bands", options.progress) as bar:
        where = Where("comparing", record["print"], dumps.store, last=False)
        for one in map_units(join.join, tasks, options.workers, bar, where):
            sizes.append(one.edges)
            report.candidates += one.candidates
            report.left_out += one.left_out
    if report.left_out:
        report.warnings.append(
            f"up to {report.left_out:,} pairs of documents were not compared: their keys are shared by thousands of"
            " documents. Use more rows or longer shingles to get smaller groups"
        )
    return tasks, sizes


def _at_once(function: Callable[[Any], Any], tasks: Sequence[Any], name: str) -> Iterator[Any]:  # noqa: ARG001 - a `Stage`
    """Yield the results of a stage that is run here."""
    return map(function, tasks)


def _run_stage(
    dumps: Dumps,
    record: dict[str, Any],
    options: Neardedupe,
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    name: str,
) -> Iterator[Any]:
    """Yield the results of a stage whose files are needed only until the dump is recorded. `name`: word and number."""
    word = name.partition(" ")[0]
    with Progress(word, len(tasks), "files", options.progress) as bar:
        where = Where(word, fingerprint(record["print"], name), dumps.store, last=False)
        yield from map_units(function, tasks, options.workers, bar, where)


def find_clusters(
    folder: str, view: View, sources: Sequence[str], sizes: Sequence[int], keep: str, stage: Stage
) -> tuple[dict[str, Any], int]:
    """Write the clusters of the last dump, unless an earlier run did.

    Args:
        folder: Folder of the signatures.
        view: All its documents.
        sources, sizes: Array files with the similar pairs, and the number of pairs of each.
        keep: Document of a cluster that is kept.
        stage: Runs a function over units.

    Returns:
        Number and sizes of the clusters, and the largest clusters with example documents; and the number of documents
        in the range of a file of clusters, 0 if there is one file.
    """
    plan, path = view.plan, clusters_name(view.plan["folder"])
    if not view.store.exists(path):
        nodes = sized(NODES, view.room)
        ranges = Ranges(plan["first"], plan["first"] + plan["rows"], nodes)
        graph = Graph(folder, len(view.plans) - 1, plan["folder"], ranges, view.room)
        forest = list(sources)
        if sum(sizes) > sized(stars.EDGES, view.room):
            forest = stars.forests(graph, sources, sizes, stage)
            if len(forest) > 1:
                return _by_range(view, graph, forest, keep, stage), nodes
        _decide(view, forest, keep, path)
    return _summary(view, path), 0


def _decide(view: View, sources: Sequence[str], keep: str, path: str) -> None:
    members, roots, attached = _connect(view, contracted(view, read_edges(view, sources)))
    kept = roots.copy()
    if attached.any():
        kept[attached] = view.decisions(roots[attached])[1]
    if keep == LONGEST:
        free = np.flatnonzero(~attached)
        order = free[np.lexsort((members[free], -view.lengths(members[free]), roots[free]))]
        _, heads, inverse = np.unique(roots[order], return_index=True, return_inverse=True)
        kept[order] = members[order[heads]][inverse]
    write_arrays(view.store, path, {"members": members, "roots": roots, "kept": kept})


def _connect(view: View, edges: npt.NDArray[np.int64]) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Return the new documents with edges, the first document of each one's cluster, and whether that is not new."""
    nodes, heads = connected(edges)
    at = int(np.searchsorted(nodes, view.plan["first"]))
    return nodes[at:], heads[at:], heads[at:] < view.plan["first"]


def _summary(view: View, path: str) -> dict[str, Any]:
    arrays = read_arrays(view.store, path)
    heads, firsts, counts = np.unique(arrays["roots"], return_index=True, return_counts=True)
    sizes = counts + (heads < view.plan["first"])
    shown = tuple(labels.largest(heads, sizes, arrays["kept"][firsts]))
    return labels.report(view, labels.count_sizes(sizes), shown, labels.examples(arrays, shown))


def _by_range(view: View, graph: Graph, forest: Sequence[str], keep: str, stage: Stage) -> dict[str, Any]:
    ranges = graph.ranges
    new = range(ranges.earlier, ranges.count)
    number, runs = stars.stars(graph, forest, stage)
    for _ in stage(
        labels.label, [labels.LabelTask(graph, part, number, runs, keep) for part in new], "connecting labels"
    ):
        pass
    sizes, top = dict[int, int](), list[labels.Cluster]()
    units = [labels.CombineTask(graph, part, keep) for part in range(ranges.count)]
    for one in stage(labels.combine, units, "connecting sizes"):
        for size, times in one.sizes.items():
            sizes[size] = sizes.get(size, 0) + times
        top = sorted([*top, *one.largest], key=lambda cluster: (-cluster.size, cluster.head))[: labels.LARGEST]
    shown, marked = tuple(top), [list[int]() for _ in top]
    for found in stage(
        labels.decide_range, [labels.DecideTask(graph, part, shown) for part in new], "connecting decisions"
    ):
        for documents, more in zip(marked, found, strict=True):
            documents += more[: labels.EXAMPLES - len(documents)]
    return labels.report(view, sizes, shown, marked)
