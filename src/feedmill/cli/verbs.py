"""The table of verbs: where each is, and what the help says about it. Nothing is imported before a verb runs.

`FRONT` has the verbs of the front page, `GROUPS` those one word further: ``feedmill tokens merge``.
"""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """A verb.

    Attributes:
        module: module of its function, or of its `typer.Typer` called ``app``.
        help: its line in the list of verbs.
        example: a command line, without ``feedmill``; empty for commands of other tools.
        page: its page of the documentation.
        first: options that its help shows, the most used first; the others are in ``--help-all``. Empty for all.
        next: the command line that people run after it, without ``feedmill``. Names in braces are options: their
            values, of several the first; without a value there is no such line.
    """

    module: str
    help: str
    example: str = ""
    page: str = ""
    first: str = ""
    next: str = ""


class Group(NamedTuple):
    """Verbs one word further.

    Attributes:
        help: its line in the list of verbs.
        verbs: by name.
    """

    help: str
    verbs: dict[str, Verb]


def function_of(verb: str) -> str:
    """Return the name of a verb's function, such as ``merge`` for ``tokens merge``."""
    name = verb.rpartition(" ")[2]
    return {"import": "import_"}.get(name, name.replace("-", "_"))


def _verb(name: str, help: str, example: str, page: str, first: str = "", next: str = "") -> dict[str, Verb]:
    module = function_of(example.split()[0])  # that of the verb, or of its group
    return {name: Verb(f"feedmill.cli.{module}", help, example, f"docs/{page}", first, next)}


FRONT: dict[str, dict[str, Verb]] = {
    "Make datasets": {
        **_verb(
            "import",
            "Make documents or a dataset from files.",
            "import photos photo-set",
            "import.md",
            "type captions exclude split-ratio overwrite dry-run",
        ),
        **_verb(
            "prepare",
            "Index a dataset, make splits, set the sample type.",
            "prepare coco --split-ratio 8,1,1",
            "prepare.md",
            "split-ratio sample-type field-map exclude overwrite dry-run",
            "show {url}",
        ),
        **_verb(
            "convert",
            "Convert a dataset to another format; compares every sample.",
            "convert coco coco-mds --to mds",
            "convert.md",
            "to split max-shard-size on-error overwrite dry-run",
            "check {destination}",
        ),
        **_verb(
            "check",
            "Find truncated shards, changed data and wrong indices.",
            "check coco",
            "check.md",
            "read-samples trust workers json",
            "serve {url}",
        ),
    },
    "Curate text": {
        **_verb(
            "tag",
            "Compute attributes of documents: length, quality, privacy.",
            "tag 'web/documents/*.gz' -t gopher_v2 --name quality",
            "tagging.md",
            "tagger name list on-error overwrite dry-run",
            "dedupe {documents} --near",
        ),
        **_verb(
            "dedupe",
            "Mark duplicates; --near: near-duplicates.",
            "dedupe web/documents --near --threshold 0.8",
            "dedupe.md",
            "near by threshold name against dry-run",
            "serve {documents}",
        ),
        **_verb(
            "filter",
            "Keep documents by attributes, length or index.",
            "filter web kept --preset gopher",
            "filter.md",
            "preset min-length max-length keep overwrite dry-run",
        ),
        **_verb(
            "tokenize",
            "Write token files: .pbin, .ds, Megatron-LM, Dolma.",
            "tokenize web/documents -o web.pbin -t tokenizer.json",
            "tokenize.md",
            "output tokenizer to text chat overwrite",
        ),
    },
    "Train and look": {
        **_verb(
            "plan",
            "Show what a recipe yields: tree, weights, repeats, bytes.",
            "plan recipe.yaml --samples 1M",
            "recipes.md",
            "",
            "trace {recipe} --step 0 --global-batch 8 --show",
        ),
        **_verb(
            "trace",
            "Show what a step saw, or when a sample or document is seen.",
            "trace recipe.yaml --step 18000 --global-batch 256 --show",
            "ledger.md",
            "step global-batch show key document source-document rank world",
            "serve {recipe}",
        ),
        **_verb(
            "run",
            "Run a pipeline of verbs; skip the steps that are up to date.",
            "run pipeline.yaml --dry-run",
            "pipelines.md",
            "dry-run only overwrite submit progress json",
            "serve {pipeline}",
        ),
        **_verb(
            "serve",
            "Look at samples, steps and mixtures in a browser, or --export.",
            "serve recipe.yaml",
            "browser.md",
            "export port host loss-log tokenizer edit",
        ),
        **_verb(
            "show",
            "Describe a dataset, and show its first samples.",
            "show coco --count 3 --sheet coco.png",
            "prepare.md",
            "count start sheet split trust json",
            "serve {path}",
        ),
    },
    "More": {
        **_verb("demo", "Run the main job on sample data: prepare, load, kill, resume.", "demo", "index.md"),
        **_verb("bench", "Measure how fast a recipe loads on this machine.", "bench recipe.yaml", "loading.md"),
        **_verb(
            "cache",
            "List, fill or empty the cache of remote data.",
            "cache warm recipe.yaml --size 200GB",
            "storage.md",
        ),
    },
}
"""Verbs of the front page by section, in the order of the help."""

GROUPS: dict[str, Group] = {
    "documents": Group(
        "Extract, decontaminate, embed, count or forget documents.",
        {
            **_verb(
                "extract",
                "Make documents from web archives: the text of their pages.",
                "documents extract 'crawl/*.warc.gz' -o web",
                "extract.md",
                "output linearizer tagger mime overwrite dry-run",
                "tag {output} -t gopher_v2",
            ),
            **_verb(
                "decontaminate",
                "Mark questions of benchmarks, however they are written.",
                "documents decontaminate web/documents --against benchmarks",
                "decontaminate.md",
                "against name threshold fields dry-run workers",
                "serve {documents}",
            ),
            **_verb(
                "embed",
                "Make a vector of each document or image with a local model.",
                "documents embed web/documents --model models/minilm",
                "neardedupe.md",
                "model name output to overwrite dry-run",
                "dedupe {documents} --near --by embeddings --embeddings {name}",
            ),
            **_verb(
                "stat",
                "Show counts and distributions of documents and attributes.",
                "documents stat web",
                "stat.md",
                "attributes plot plot-to bins workers json",
            ),
            **_verb(
                "forget",
                "Find documents in all that was made from them; list them.",
                "documents forget @ids.txt web tokens recipe.yaml",
                "lineage.md",
            ),
        },
    ),
    "tokens": Group(
        "Merge, shuffle, split, index or decode token files.",
        {
            **_verb(
                "merge",
                "Merge token files or JSONL files.",
                "tokens merge a.pbin b.pbin all.pbin",
                "tokens.md",
                "order max-tokens max-file-size overwrite dry-run workers",
                "show {output}",
            ),
            **_verb(
                "shuffle",
                "Shuffle documents, lines or chunks of tokens.",
                "tokens shuffle all.pbin mixed.pbin --seed 7",
                "tokens.md",
                "seed order chunk max-file-size overwrite dry-run",
                "show {output}",
            ),
            **_verb(
                "split",
                "Split token files or JSONL files into parts.",
                "tokens split all.pbin '{part}.pbin' --ratio 0.99,0.01",
                "tokens.md",
                "ratio chunks plan seed overwrite dry-run",
            ),
            **_verb(
                "index",
                "Write the index of a JSONL or .pbin file.",
                "tokens index qa.jsonl",
                "formats/jsonl.md",
                "output on-error eos-id token-size overwrite dry-run",
                "show {path}",
            ),
            **_verb(
                "decode",
                "Show documents of token files as text.",
                "tokens decode web.pbin --first 2",
                "tokenize.md",
            ),
            **_verb(
                "lengths",
                "Count the tokens of samples of text and media.",
                "tokens lengths vqa --processor models/qwen3-vl",
                "media.md",
                "processor messages text split check-samples workers",
            ),
            **_verb(
                "numbers",
                "Convert between tokens, samples and steps.",
                "tokens numbers --tokens 1B --seq-len 4096 --ranks 8",
                "tokens.md",
            ),
        },
    ),
    "mixture": Group(
        "Make cells, propose mixtures, fit the losses of runs.",
        {
            **_verb(
                "cells",
                "Find the cell of each document: topic, quality, source.",
                "mixture cells tokens --by quality__bucket,topic,source",
                "mixtures.md",
                "by where require-values overwrite dry-run workers",
                "plan {path}",
            ),
            **_verb(
                "propose",
                "Propose mixtures to try in small runs, as recipes in a folder.",
                "mixture propose recipe.yaml -o swarm -n 64 --target 200B",
                "mixtures.md",
                "output count target max-repeats concentration dry-run",
                "mixture compare {output} --tokens 1M",
            ),
            **_verb(
                "fit",
                "Fit the losses of a swarm's runs; write the best mixture found.",
                "mixture fit swarm losses.csv -o best.yaml",
                "mixtures.md",
                "output metric exclude on-error max-repeats dry-run",
                "serve {output}",
            ),
            **_verb(
                "compare",
                "Show recipes side by side: shares, repeats, distances.",
                "mixture compare a.yaml b.yaml --tokens 200B",
                "mixtures.md",
            ),
        },
    ),
    "edit": Group(
        "Append, delete, add parts, reshard, repair or mount a dataset.",
        {
            **_verb(
                "append",
                "Add samples to a prepared dataset, as new shards.",
                "edit append coco more.jsonl",
                "writing.md",
                "",
                "check {url}",
            ),
            **_verb(
                "delete",
                "Delete samples by key; rewrites only their shards.",
                "edit delete coco --keys-from bad.txt --yes",
                "writing.md",
                "",
                "check {url}",
            ),
            **_verb(
                "add-parts",
                "Add parts from another dataset with the same keys.",
                "edit add-parts coco captions --part-name txt",
                "writing.md",
                "",
                "show {url}",
            ),
            **_verb(
                "reshard",
                "Write samples to shards of another size, number or order.",
                "edit reshard coco coco-large --max-shard-size 1GB",
                "writing.md",
                "max-shard-size max-shard-samples shuffle pattern overwrite dry-run",
                "check {url}",
            ),
            **_verb(
                "repair",
                "Remove incomplete samples, report them, index the rest.",
                "edit repair coco",
                "check.md",
                "",
                "check {url}",
            ),
            **_verb("mount", "Mount a dataset as a read-only file system.", "edit mount coco /mnt/coco", "writing.md"),
            **_verb(
                "prepare-media",
                "Store sizes and durations of media in the index.",
                "edit prepare-media coco --media-metadata-by-extension",
                "media.md",
                "media-metadata-by-extension media-metadata-by-header media-metadata-by-glob dry-run workers",
                "show {url}",
            ),
        },
    ),
    "compat": Group(
        "The commands of Dolma, Energon, Modalities, Nanotron and others.",
        {
            "dolma": Verb("feedmill.compat.dolma.cli", "Dolma's own commands: tag, dedupe, mix, tokens, stat."),
            "energon": Verb("feedmill.compat.energon.cli", "Energon's own commands: prepare, info, lint, preview."),
            "modalities": Verb(
                "feedmill.compat.modalities.cli", "Modalities' own data commands: index, pack, merge, shuffle."
            ),
            "nanotron": Verb("feedmill.compat.nanotron.cli", "Nanotron's data tool: preprocess_data."),
            "megatron": Verb("feedmill.compat.megatron.cli", "Megatron-LM's data tools, and recipes of its runs."),
            "vla": Verb("feedmill.compat.vla.cli", "VLA Foundry's data: manifests, statistics, windows."),
        },
    ),
}
"""Groups of verbs by name, in the order of the help."""

VERBS: dict[str, Verb] = {name: verb for verbs in FRONT.values() for name, verb in verbs.items()} | {
    f"{group} {name}": verb for group, (_, verbs) in GROUPS.items() for name, verb in verbs.items()
}
"""Verbs by their words: ``tokenize``, ``tokens merge``."""

MEANT = {
    "dedupe --near": ("neardedupe", "near-dedupe", "fuzzy-dedupe", "minhash"),
    "show": (
        *("info", "preview", "ls", "cat", "head", "list", "view", "inspect", "describe", "print", "peek", "look"),
        *("open", "less", "tail", "stats", "summary", "sample", "samples"),
    ),
    "serve": ("browse", "ui", "web", "gui", "browser", "viewer", "dashboard"),
    "serve --export report.html": ("report", "export", "html"),
    "check": ("validate", "verify", "lint", "doctor", "fsck"),
    "import": ("add", "ingest", "load", "download", "init", "create", "new", "make"),
    "tokenize": ("pack", "encode", "tok"),
    "tag": ("score", "annotate", "classify"),
    "documents embed": ("embeddings", "vectors"),
    "filter": ("select", "clean"),
    "plan": ("recipe",),
    "trace": ("where", "find", "explain", "why"),
    "bench": ("benchmark", "speed", "profile"),
    "run": ("pipeline", "exec"),
    "tokens merge": ("concat", "join"),
    "tokens decode": ("detokenize",),
    "edit delete": ("remove", "rm"),
    "edit repair": ("fix",),
    "documents extract": ("warc",),
    "--version": ("version",),
    "--help": ("help",),
}
"""Command line -> what people type for it, words of earlier releases among them."""

ELSEWHERE = {
    "sources are mixed by a recipe, see docs/recipes.md. Check it with 'feedmill plan recipe.yaml'; rules that keep"
    " documents, Dolma's mixer, are 'feedmill filter'": ("mix", "blend", "interleave", "weights"),
    "your own program trains, with the batches of fm.Loader, see docs/training.md. Check its data with 'feedmill plan"
    " recipe.yaml'": ("train", "finetune", "pretrain", "sft"),
}
"""What to do instead -> words for what no verb does by itself."""


def meant_by(word: str, group: str = "") -> str:
    """Return what an unknown word for a verb stands for, as the end of a message; empty if nothing is similar.

    Args:
        group: in which it was typed; empty for the front page.
    """
    from difflib import get_close_matches  # only needed for errors

    for advice, words in ELSEWHERE.items():
        if word in words and word not in GROUPS:
            return f": {advice}"
    moved = {name.rpartition(" ")[2]: name for name in reversed(VERBS)} | {name: name for name in GROUPS}
    exact = {typed: line for line, words in MEANT.items() for typed in words} | moved
    if word in exact:
        return f": write 'feedmill {exact[word]}'"
    here = {name: f"{group} {name}" for name in GROUPS[group].verbs} if group else {}
    known = moved | here
    for names in (here or [name for name in known if known[name] == name], known):
        for near in get_close_matches(word.lower(), names, 1):
            return f": did you mean {known[near]!r}?"
    return ""
