"""The table of verbs: where each is, and what the help says about it. Nothing is imported before a verb runs."""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """A verb.

    Attributes:
        module: module of its function, or of its `typer.Typer` called ``app``.
        help: its line in the list of verbs.
        example: a command line, without ``feedmill``; empty for commands of other tools.
        page: its page of the documentation.
    """

    module: str
    help: str
    example: str = ""
    page: str = ""


def function_of(verb: str) -> str:
    """Return the name of a verb's function and of its module."""
    return {"import": "import_"}.get(verb, verb.replace("-", "_"))


def _group(*rows: tuple[str, str, str, str]) -> dict[str, Verb]:
    return {
        name: Verb(f"feedmill.cli.{function_of(name)}", text, example, f"docs/{page}")
        for name, text, example, page in rows
    }


GROUPS: dict[str, dict[str, Verb]] = {
    "Begin": _group(
        ("demo", "Run the main job on sample data: prepare, load, kill, resume.", "demo", "index.md"),
        ("import", "Make documents or a dataset from files.", "import photos photo-set", "import.md"),
    ),
    "Look at data": _group(
        ("info", "Describe a dataset: format, samples, shards, splits, type.", "info coco", "prepare.md"),
        (
            "preview",
            "Show samples as text, and their images as one picture.",
            "preview coco --count 3 --sheet coco.png",
            "prepare.md",
        ),
        ("serve", "Look at samples, steps and mixtures in a browser.", "serve recipe.yaml", "browser.md"),
        ("report", "Write what serve shows to one HTML file.", "report recipe.yaml -o report.html", "browser.md"),
        ("stat", "Show counts and distributions of documents and attributes.", "stat web", "stat.md"),
        ("check", "Find truncated shards, changed data and wrong indices.", "check coco", "check.md"),
    ),
    "Make datasets of samples": _group(
        (
            "prepare",
            "Index a dataset, make splits, set the sample type.",
            "prepare coco --split-ratio 8,1,1 --sample-type CaptioningSample",
            "prepare.md",
        ),
        (
            "prepare-media",
            "Store sizes and durations of media in the index.",
            "prepare-media coco --media-metadata-by-extension",
            "media.md",
        ),
        (
            "convert",
            "Convert a dataset to another format; compares every sample.",
            "convert coco coco-mds --to mds",
            "convert.md",
        ),
        (
            "reshard",
            "Write samples to shards of another size, number or order.",
            "reshard coco coco-large --max-shard-size 1GB --shuffle 7",
            "writing.md",
        ),
        ("append", "Add samples to a prepared dataset, as new shards.", "append coco more.jsonl", "writing.md"),
        (
            "add-parts",
            "Add parts from another dataset with the same keys.",
            "add-parts coco captions --part-name txt",
            "writing.md",
        ),
        (
            "delete",
            "Delete samples by key; rewrites only their shards.",
            "delete coco --keys-from bad.txt --yes",
            "writing.md",
        ),
        ("repair", "Remove incomplete samples, report them, index the rest.", "repair coco", "check.md"),
        ("mount", "Mount a dataset as a read-only file system.", "mount coco /mnt/coco", "writing.md"),
    ),
    "Curate documents": _group(
        (
            "extract",
            "Make documents from web archives: the text of their pages.",
            "extract 'crawl/*.warc.gz' -o web",
            "extract.md",
        ),
        (
            "tag",
            "Compute attributes of documents: length, quality, privacy.",
            "tag 'web/documents/*.gz' -t gopher_v2 --name quality",
            "tagging.md",
        ),
        (
            "dedupe",
            "Mark duplicates: documents, paragraphs, n-grams.",
            "dedupe web/documents --by paragraphs --name copies",
            "dedupe.md",
        ),
        (
            "neardedupe",
            "Mark near-duplicates: MinHash, exact Jaccard, clusters.",
            "neardedupe web/documents --threshold 0.8",
            "neardedupe.md",
        ),
        (
            "decontaminate",
            "Mark questions of benchmarks, however they are written.",
            "decontaminate web/documents --against benchmarks",
            "decontaminate.md",
        ),
        ("filter", "Keep documents by attributes, length or index.", "filter web.yaml", "filter.md"),
        (
            "forget",
            "Find documents in all that was made from them; list them.",
            "forget @ids.txt web tokens recipe.yaml",
            "lineage.md",
        ),
        (
            "run",
            "Run a pipeline of verbs; skip the steps that are up to date.",
            "run pipeline.yaml --dry-run",
            "pipelines.md",
        ),
    ),
    "Make tokens": _group(
        (
            "tokenize",
            "Write token files: .pbin, .ds, Megatron-LM, Dolma.",
            "tokenize web/documents -o web.pbin -t tokenizer.json",
            "tokenize.md",
        ),
        ("decode", "Show documents of token files as text.", "decode web.pbin --first 2", "tokenize.md"),
        ("merge", "Merge token files or JSONL files.", "merge a.pbin b.pbin all.pbin", "tokens.md"),
        (
            "shuffle",
            "Shuffle documents, lines or chunks of tokens.",
            "shuffle all.pbin mixed.pbin --seed 7",
            "tokens.md",
        ),
        (
            "split",
            "Split token files or JSONL files into parts.",
            "split all.pbin '{part}.pbin' --ratio 0.99,0.01",
            "tokens.md",
        ),
        ("index", "Write the index of a JSONL or .pbin file.", "index qa.jsonl", "formats/jsonl.md"),
        (
            "lengths",
            "Count the tokens of samples of text and media.",
            "lengths vqa --processor models/qwen3-vl",
            "media.md",
        ),
        (
            "numbers",
            "Convert between tokens, samples and steps.",
            "numbers --tokens 1B --seq-len 4096 --ranks 8",
            "tokens.md",
        ),
    ),
    "Train": _group(
        (
            "plan",
            "Show what a recipe yields: tree, weights, repeats, bytes.",
            "plan recipe.yaml --samples 1M",
            "recipes.md",
        ),
        (
            "trace",
            "Show what a step saw, or when a sample or document is seen.",
            "trace recipe.yaml --step 18000 --global-batch 256 --show",
            "ledger.md",
        ),
        ("bench", "Measure how fast a recipe loads on this machine.", "bench recipe.yaml", "loading.md"),
        ("cache", "List, fill or empty the cache of remote data.", "cache warm recipe.yaml --size 200GB", "storage.md"),
    ),
    "Commands of other tools": {
        "modalities": Verb(
            "feedmill.compat.modalities.cli", "Modalities' own data commands: index, pack, merge, shuffle."
        ),
        "energon": Verb("feedmill.compat.energon.cli", "Energon's own commands: prepare, info, lint, preview."),
        "nanotron": Verb("feedmill.compat.nanotron.cli", "Nanotron's data tool: preprocess_data."),
        "megatron": Verb("feedmill.compat.megatron.cli", "Megatron-LM's data tools, and recipes of its runs."),
        "vla": Verb("feedmill.compat.vla.cli", "VLA Foundry's data: manifests, statistics, windows."),
        "dolma": Verb("feedmill.compat.dolma.cli", "Dolma's own commands: tag, dedupe, mix, tokens, stat."),
    },
}
"""Verbs by group, in the order of the help."""
VERBS: dict[str, Verb] = {name: verb for group in GROUPS.values() for name, verb in group.items()}
