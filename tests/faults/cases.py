"""The writing verbs: how each is called, on what data, and what readers see of its result."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from faults import data, looks


@dataclass(frozen=True)
class Case:
    """A verb with its data.

    Attributes:
        name: what it is called.
        words: the command, run in the folder with its data.
        make: makes the data in a folder.
        look: what a reader sees of what the verb changes, given the folder; raises `FeedmillError` where there is
            nothing.
        least: calls that it makes at least, or the case has lost its sense.
        each: what `look` gives is a mapping, each entry of which may be old or new by itself: outputs of their own.
        differing: patterns of what may differ from run to run in files.
        plain: what is compared of a file, where that is not its bytes.
        fewer: by how many calls a run may be shorter than another, as threads that rename at once share the fsync of
            their folder. How two processes take turns decides about more.
    """

    name: str
    words: tuple[str, ...]
    make: Callable[[Path], Any]
    look: Callable[[Path], Any]
    least: int = 20
    each: bool = False
    differing: bytes | None = None
    plain: Callable[[Path], bytes] | None = None

    @property
    def fewer(self) -> int:
        return sys.maxsize if self.name.endswith("by 2") else 5


def see(function: Callable[..., Any], *names: str) -> Callable[[Path], Any]:
    return partial(_see, function, names)


def _see(function: Callable[..., Any], names: tuple[str, ...], folder: Path) -> Any:
    return function(folder, *names)


UUID = rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # drawn again
ONE = ("--workers", "1")


def writing() -> list[Case]:
    prepare = ("prepare", "d", "--split-ratio", "2,1,0", "--sample-type", "CrudeWebdataset", *ONE)
    lines = ("prepare", "x.jsonl", "--split-ratio", "2,1,0", "--sample-type", "CrudeWebdataset", *ONE)
    media = ("edit", "prepare-media", "d", "--media-by-extension", *ONE)
    delete = ("edit", "delete", "d", "--yes", "s00001", "s00005", "s00008", "s00009", "s00010", "s00011", *ONE)
    d = see(looks.samples, "d")
    reshard = ("edit", "reshard", "d", "e", "--max-shard-samples", "5", "--shuffle", "3", *ONE)
    return [
        Case("prepare tars", prepare, data.plain_tars, d, 50, each=True, differing=UUID),
        Case("prepare again", (*prepare, "--overwrite"), data.sample_set, d, 50, each=True, differing=UUID),
        Case("prepare jsonl", lines, data.json_lines, see(looks.splits, "x.jsonl"), 12, each=True),
        Case("prepare media", media, data.pictures, see(looks.media, "d"), 10, plain=looks.without_time),
        Case("prepare media files", ("edit", "prepare-media", "media", *media[3:]), data.picture_files,
             see(looks.media, "media"), 10, differing=UUID, plain=looks.without_time),
        Case("repair tars", ("edit", "repair", "d", *ONE), data.cut_tars, d, 30, differing=UUID),
        Case("repair jsonl", ("edit", "repair", "x.jsonl", *ONE), data.bad_lines, see(looks.rows, "x.jsonl")),
        Case("append", ("edit", "append", "d", "more", "--max-shard-samples", "4", *ONE),
             data.both(data.sample_set, data.more), d, 60, each=True),
        Case("delete", delete, data.sample_set, d, 80),
        Case("add-parts", ("edit", "add-parts", "d", "extra", *ONE), data.both(data.sample_set, data.extra), d, 80),
        Case("add-parts into", ("edit", "add-parts", "d", "extra", "--into", "e", *ONE),
             data.both(data.sample_set, data.extra), see(looks.samples, "e"), 50),
        Case("reshard", reshard, data.sample_set, see(looks.samples, "e"), 60),
        Case("reshard over", (*reshard, "--overwrite"),
             data.both(data.sample_set, partial(data.sample_set, name="e", count=9, first=100)),
             see(looks.samples, "e"), 60),
        Case("reshard by 2", (*reshard[:-1], "2"), data.sample_set, see(looks.samples, "e"), 60),
    ]  # fmt: skip


def converting() -> list[Case]:
    def case(name: str, source: str, out: str, to: str, make: Callable[[Path], Any], *more: str, **facts: Any) -> Case:
        words = ("convert", source, out, "--to", to, *more, *ONE)
        return Case(f"convert {name}", words, make, facts.pop("look", None) or see(looks.samples, out), **facts)

    some, texts, tree = data.texts_set, data.text_samples, data.rows
    few = ("--max-shard-samples", "5")
    return [
        case("wds", "source", "out", "webdataset", some, *few),
        case("wds wids", "source", "out", "wds", some, "--wids", *few),
        case("vla", "source", "out", "vla", some, *few),
        case("mds", "source", "out", "mds", some, *few),
        case("parquet", "source", "out.parquet", "parquet", some, *few),
        case("jsonl", "source", "out.jsonl", "jsonl", texts, *few),
        case("over", "source", "out.jsonl", "jsonl", data.both(texts, data.old_lines), "--overwrite", *few),
        case(
            "over shards",
            "source",
            "out",
            "wds",
            data.both(some, data.old_conversion),
            "--overwrite",
            *few,
        ),
        case("rows", "rows", "out", "parquet", tree, look=see(looks.tables, "out"), each=True),
        case("lines", "rows", "out.jsonl.gz", "jsonl.gz", tree, look=see(looks.lines, "."), each=True),
        case("megatron", "t", "out", "megatron", data.token_files, look=see(looks.tokens_below, "out"), each=True),
        case("pbin", "t", "out", "pbin", data.token_files, look=see(looks.tokens_below, "out"), each=True),
        case("ds", "t", "out", "ds", data.token_files, look=see(looks.tokens_below, "out"), each=True),
        case("vla-text", "t", "out", "vla-text", data.token_files, "--seq-len", "15", "--allow-loss"),
    ]


def tokenizing() -> list[Case]:
    def case(to: str, made: str, *more: str, **facts: Any) -> Case:
        words = ("tokenize", "texts", "-o", "out/x", "-t", str(data.TOKENIZER), "--to", to, *(more or ONE))
        look = facts.pop("look", see(looks.tokens, *(f"out/{one}" for one in made.split())))
        return Case(facts.pop("name", f"tokenize {to}"), words, facts.pop("make", data.texts), look, **facts)

    packing = ("compat", "modalities", "data", "pack_encoded_data", "c.yaml")
    chats = ("compat", "modalities", "data", "prepare_instruction_tuning_data", "--config_file_path", "c.yaml")
    nanotron = ("compat", "nanotron", "preprocess_data", "--tokenizer-name-or-path", str(data.TOKENIZER),
                "--output-folder", "out", "--n-tasks", "2", "--workers", "1", "--logging-dir", "logs", "jsonl",
                "--dataset", "texts")  # fmt: skip
    dolma = ("compat", "dolma", "tokens", "--documents", "texts/*.jsonl", "--destination", "out", "--processes", "1",
             "--tokenizer.name_or_path", str(data.TOKENIZER), "--tokenizer.eos_token_id", "2")  # fmt: skip
    return [
        case("pbin", "x.pbin"),
        case("pbin", "x.pbin", "--overwrite", *ONE, make=data.both(data.texts, data.old_tokens), name="tokenize over"),
        case("pbin", "x.pbin", "--workers", "2", name="tokenize by 2"),
        case("ds", "x.ds"),
        case("megatron", "x.bin"),
        case("dolma", "x.npy"),
        case("vla-text", "", "--seq-len", "15", *ONE, look=see(looks.samples, "out/x")),
        case("pbin,ds,megatron,dolma", "x.pbin x.ds x.bin x.npy", each=True, name="tokenize four"),
        Case("dolma tokens", dolma, data.texts, see(looks.tokens_below, "out"), each=True),
        Case("nanotron", nanotron, data.texts, see(looks.tokens_below, "out"), each=True, plain=looks.without_log),
        Case("modalities pack", packing, data.packing, see(looks.tokens, "a.pbin")),
        # (its packed files say by which inputs they were made, with the times of files of the same run)
        Case(
            "modalities chats", chats, data.chats, see(looks.everything, "out"), each=True, differing=rb'"job": "\w+"'
        ),
    ]


def rewriting() -> list[Case]:
    def case(name: str, verb: str, made: str, make: Callable[[Path], Any] = data.token_files, **facts: Any) -> Case:
        seen = see(looks.rows, made) if made.endswith("jsonl") else see(looks.tokens, *made.split())
        return Case(name, tuple(verb.split()), make, facts.pop("look", seen), **facts)

    jsonl = data.both(data.json_lines, partial(data.json_lines, name="y.jsonl", count=9))
    return [
        case("index jsonl", "tokens index x.jsonl", "x.idx", data.json_lines, look=see(looks.files, "x.idx"), least=5),
        case("index pbin", "tokens index main_2b.pbin", "", data.packed,
             look=see(looks.files, "main_2b.pbin.feedmill.bounds"), least=5),
        case("merge pbin", "tokens merge t/0.ds t/1.ds m.pbin", "m.pbin"),
        case("merge ds", "tokens merge t/0.ds t/1.ds m.ds", "m.ds", partial(data.token_files, loss=True)),
        case("merge megatron", "tokens merge t/0.ds t/1.ds m.bin", "m.bin"),
        case("merge jsonl", "tokens merge x.jsonl y.jsonl m.jsonl", "m.jsonl", jsonl, least=6),
        case("merge datatrove", "tokens merge t/0.ds t/1.ds m.ds --order datatrove --seed 3", "m.ds"),
        case("shuffle", "tokens shuffle t/0.ds t/1.ds s.pbin --seed 3", "s.pbin"),
        case("shuffle parts", "tokens shuffle t/0.ds t/1.ds s{part}.ds --seed 3 --max-tokens-per-file 1200",
             "s00000.ds s00001.ds", each=True),
        case("shuffle jsonl", "tokens shuffle x.jsonl y.jsonl m.jsonl --seed 3", "m.jsonl", jsonl, least=6),
        case("split", "tokens split t/0.ds t/1.ds s.{part}.pbin --ratio 8,2 --seed 3",
             "s.train.pbin s.val.pbin", each=True),
        case("split jsonl", "tokens split x.jsonl s.{part}.jsonl --chunks 2", "", data.json_lines, each=True,
             look=see(looks.files, "s.00000.jsonl", "s.00001.jsonl")),
        case("filter", "filter t/0.ds t/1.ds f.ds --min-length 9", "f.ds"),
        case("filter over", "filter t/0.ds t/1.ds f.pbin --min-length 9 --overwrite", "f.pbin",
             data.both(data.token_files, data.old_pbin)),
        case("modalities chunk", "compat modalities data create_shuffled_dataset_chunk --input_file_list_path list.txt"
             " --input_data_root_path . --output_chunk_file_path c.pbin --chunk_id 0 --num_chunks 2 --global_seed 1",
             "c.pbin", data.packed),
    ]  # fmt: skip


def curating() -> list[Case]:
    def case(name: str, verb: str, made: str, make: Callable[[Path], Any] = data.documents, **facts: Any) -> Case:
        seen = facts.pop("look", see(looks.lines, *made.split()))
        return Case(name, tuple(verb.split()), make, seen, each=True, **facts)

    dolma = ("compat dolma dedupe --documents d/documents/* --dedupe.name x --dedupe.documents.attribute_name x"
             " --dedupe.documents.key $.text --bloom_filter.file f.bin --bloom_filter.read_only=false"
             " --bloom_filter.estimated_doc_count 1000 --bloom_filter.desired_false_positive_rate 1e-6"
             " --processes 1")  # fmt: skip
    return [
        case("tag", "tag d/documents/* --name e -t char_length_v1 -t gopher_v2 --workers 1", "d/attributes"),
        case("tag by 2", "tag d/documents/* --name e -t char_length_v1 --workers 2", "d/attributes"),
        case("dedupe", "dedupe d/documents --workers 1", "d/attributes"),
        case("dedupe paragraphs", "dedupe d/documents --by paragraphs --workers 1", "d/attributes"),
        case("dedupe substrings", "dedupe d/documents --by substrings --length 20 --workers 1", "d/attributes"),
        case("dedupe bloom", "dedupe d/documents --by paragraphs --bloom f.bin --items 1000 --workers 1",
             "d/attributes"),
        case("dolma dedupe", dolma, "d/attributes"),
        case("decontaminate", "documents decontaminate d/documents --against d/documents --workers 1", "d/attributes"),
        case("neardedupe", "dedupe --near d/documents --threshold 0.7 --workers 1", "d/attributes",
             data.near_documents),
        case("neardedupe kept", "dedupe --near d/documents --threshold 0.7 --signatures s --workers 1", "d/attributes",
             data.near_documents),
        case("mix", "filter mix.yaml --workers 1", "mixed", data.attributes),
        case("mix by 2", "filter mix.yaml --workers 2", "mixed", data.attributes),
        case("cells", "mixture cells t/x.ds --by number --workers 1", "", data.tagged_tokens,
             look=see(looks.cells, "t")),
        case("stat", "documents stat d/attributes/made --workers 1 --plot-to p.png", "", data.attributes,
             look=see(looks.files, "p.png"),
             least=4),
    ]  # fmt: skip


def vla_and_energon() -> list[Case]:
    return [
        Case("vla manifest", ("compat", "vla", "manifest", "r", "--name", "m.jsonl", *ONE), data.robotics,
             see(looks.files, "r/m.jsonl"), 5),
        Case("vla stats", ("compat", "vla", "stats", "r", "--output", "s.json"), data.robotics,
             see(looks.files, "s.json"), 5),
        Case("vla windows", ("compat", "vla", "windows", "robot", "--output", "w", "--shard-samples", "4", *ONE),
             data.robot,
             see(looks.files, "w/manifest.jsonl", "w/stats.json", "w/preprocessing_config.yaml"), each=True),
        Case("vla merge-stats", ("compat", "vla", "merge-stats", "r/stats.json", "r/stats.json", "--output", "s.json"),
             data.robotics, see(looks.files, "s.json"), 5),
        Case("energon prepare", ("compat", "energon", "prepare", "d", "--split-ratio", "2,1,0", "--sample-type",
             "CrudeWebdataset", "--non-interactive", *ONE), data.plain_tars, see(looks.samples, "d"), 50, each=True,
             differing=UUID),
        Case("energon prepare-media", ("compat", "energon", "prepare-media", "d",
             "--media-metadata-by-extension", *ONE),
             data.pictures, see(looks.media, "d"), 10, plain=looks.without_time),
    ]  # fmt: skip


CASES: dict[str, Case] = {
    case.name: case
    for case in [*writing(), *converting(), *tokenizing(), *rewriting(), *curating(), *vla_and_energon()]
}
