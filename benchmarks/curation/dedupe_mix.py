"""Compare deduplicating and mixing with Dolma: whole commands with the same configuration file.

    python -m benchmarks.curation.dedupe_mix CORPUS [--repeat 3]
        [--only documents,mix-jq] [--workers 1 2]

CORPUS is a folder with ``documents/*.jsonl.gz`` and ``corpus.json`` (with ``docs``, ``paras``, ``text_bytes`` and
``file_bytes``). Feedmill first makes the inputs of the mixes: attributes of three taggers, and duplicate paragraphs.
That is not measured. "exact" is ``feedmill dedupe`` without a filter, compared with Dolma with a filter. "own-filter"
creates a filter of Feedmill's size and number of hashes. "same-filter" uses Dolma's size and hashes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import peers
from benchmarks.lib.measure import alternate, feedmill, run

FALSE_POSITIVES = 1e-4
TAGGERS = ("gopher_v2", "char_length_with_paragraphs_v1", "pii_regex_with_counts_fast_v2")
SCRATCH = ("attributes/bench", "attributes/bench_own", "bench.bin", "mixed")


class Case(NamedTuple):
    """One line of the table: both commands, and the target ratio."""

    name: str
    ours: list[str]
    theirs: list[str]
    wanted: float | None


def dedupe_cases(corpus: Path, facts: dict[str, Any], processes: int) -> Iterator[Case]:
    """Return the cases of documents, paragraphs and 13-grams."""
    by_ngram = {"ngram_length": 13, "stride": 3, "overlap_threshold": 0.5}
    kinds = {
        "documents": (facts["docs"], {"documents": {"attribute_name": "dup", "key": "$.text"}}, None, 3.0),
        "paragraphs": (facts["paras"], {"paragraphs": {"attribute_name": "dup"}, "skip_empty": True}, 1.7, None),
        "ngrams": (
            facts["text_bytes"] // 15,
            {"paragraphs": {"attribute_name": "dup", "by_ngram": by_ngram}, "skip_empty": True},
            None,
            4.0,
        ),
    }
    documents = f"{corpus}/documents/*"
    for name, (items, dedupe, with_filter, exactly) in kinds.items():
        file = corpus / f"bench_{name}.json"
        bloom = {
            "file": f"{corpus}/bench.bin",
            "read_only": False,
            "estimated_doc_count": items,
            "desired_false_positive_rate": FALSE_POSITIVES,
        }
        config = {"documents": [documents], "dedupe": {"name": "bench", **dedupe}, "bloom_filter": bloom}
        file.write_text(json.dumps({**config, "processes": processes}))
        theirs = ["-c", str(file), "dedupe"]
        yield Case(f"{name}-same-filter", feedmill("compat", "dolma", "--exact", *theirs), theirs, with_filter)
        own = ["dedupe", documents, "--by", name, "--name", "bench_own", "--workers", str(processes)]
        own += ["--stride", "3"] if name == "ngrams" else []
        yield Case(f"{name}-exact", feedmill(*own), theirs, exactly)
        filtered = [*own, "--bloom", f"{corpus}/bench.bin", "--items", str(items)]
        filtered += ["--false-positives", str(FALSE_POSITIVES)]
        yield Case(f"{name}-own-filter", feedmill(*filtered), theirs, None)


def mix_cases(corpus: Path, facts: dict[str, Any], processes: int) -> Iterator[Case]:
    """Return the cases of mixing: three filters and four replacements in two languages, and a filter that keeps all."""
    gopher, pii = "mixin__gopher_v2__{}", "mixin__pii_regex_with_counts_fast_v2__{}"
    spans = [{"span": "$.attributes.dup", "min_score": 0.5, "replacement": ""}] + [
        {"span": f"$.attributes.{pii.format(kind)}", "min_score": 0.5, "replacement": f" |||{kind}||| "}
        for kind in ("EMAIL_ADDRESS", "PHONE_NUMBER", "IP_ADDRESS")
    ]
    limits = (("word_count", 10), ("median_word_length", 12), ("fraction_of_duplicate_lines", 0.6))
    paths = [f"$.attributes[?(@.{gopher.format(name)}[0][2] > {limit})]" for name, limit in limits]
    jqs = [f".attributes.{gopher.format(name)}[0][2] > {limit}" for name, limit in limits]
    variants: dict[str, tuple[dict[str, Any], float | None]] = {
        "jsonpath": ({"filter": {"include": paths[:1], "exclude": paths[1:]}, "span_replacement": spans}, 8.0),
        "jq": ({"filter": {"syntax": "jq", "include": jqs[:1], "exclude": jqs[1:]}, "span_replacement": spans}, 5.0),
        "all": ({"filter": {"include": [], "exclude": ["$.nothing"]}}, None),
    }
    for name, (rules, wanted) in variants.items():
        output = {
            "path": f"{corpus}/mixed",
            "max_size_in_bytes": max(1, facts["file_bytes"] // facts["files"]),
            "discard_fields": ["attributes"],
            "min_text_length": 1,
        }
        attributes = [] if name == "all" else ["mixin", "mixdup"]
        stream = {"name": "m", "documents": [f"{corpus}/documents/*"], "attributes": attributes, "output": output}
        file = corpus / f"bench_mix_{name}.json"
        file.write_text(json.dumps({"streams": [{**stream, **rules}], "processes": processes}))
        theirs = ["-c", str(file), "mix"]
        yield Case(f"mix-{name}", feedmill("compat", "dolma", *theirs), theirs, wanted)


def prepare(corpus: Path) -> None:
    """Make the attributes for the mixes."""
    documents = f"{corpus}/documents/*"
    run(feedmill("compat", "dolma", "tag", "--documents", documents, "--experiment", "mixin", "--taggers", *TAGGERS))
    dedupe = {"name": "mixdup", "paragraphs": {"attribute_name": "dup"}, "skip_empty": True}
    bloom = {"file": f"{corpus}/mixdup.bin", "read_only": False, "estimated_doc_count": 10**6}
    file = corpus / "bench_prepare.json"
    file.write_text(
        json.dumps(
            {
                "documents": [documents],
                "dedupe": dedupe,
                "bloom_filter": {**bloom, "desired_false_positive_rate": FALSE_POSITIVES},
            }
        )
    )
    run(feedmill("compat", "dolma", "-c", file, "dedupe"))


def clear(corpus: Path) -> None:
    """Delete the output of the previous measurement."""
    for name in SCRATCH:
        path = corpus / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def main() -> None:
    """Print one line for each case and number of processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    facts = json.loads((options.corpus / "corpus.json").read_text())
    dolma = peers.program("dolma", "dolma") if peers.python("dolma") else None
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "RUST_LOG": "error"}
    prepare(options.corpus)

    def side(command: list[str]) -> dict[str, float]:
        clear(options.corpus)
        return run(command, environment)

    for processes in options.processes:
        for make in (dedupe_cases, mix_cases):
            for case in make(options.corpus, facts, processes):
                if not any(word in case.name for word in options.only.split(",")):
                    continue
                side(case.ours)  # not counted: fills the cache of compiled code
                ours, theirs = alternate(
                    options.repeat,
                    lambda case=case: side(case.ours),
                    (lambda case=case: side([dolma, *case.theirs])) if dolma else None,
                )
                show(case, processes, ours, theirs, facts["text_bytes"])
    clear(options.corpus)


def show(case: Case, processes: int, ours: dict[str, Any], theirs: dict[str, Any], size: int) -> None:
    """Print one line: the medians of both commands and their ratio."""
    second, peer = statistics.median(ours["s"]), statistics.median(theirs.get("s", [0]))
    cpu, peers_cpu = statistics.median(ours["cpu_s"]), statistics.median(theirs.get("cpu_s", [0]))
    wanted = f"  wanted {case.wanted}" if case.wanted else ""
    print(
        f"{case.name:24} {processes} processes: {second:6.2f} s ({size / 1e6 / second:5.0f} MB/s, cpu {cpu:6.2f} s,"
        f" {statistics.median(ours['peak_mb']):5.0f} MB), Dolma {peer:6.2f} s (cpu {peers_cpu:6.2f} s):"
        f" {peer / second:5.2f} times; cpu {peers_cpu / cpu:5.2f} times{wanted}",
        flush=True,
    )


if __name__ == "__main__":
    main()
