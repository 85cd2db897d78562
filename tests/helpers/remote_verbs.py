"""Every command that writes, with a place in a bucket or another store for what it writes, and its inputs."""

from __future__ import annotations

import gzip
import json
import random
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from typer.testing import CliRunner

import feedmill as fm
from faults import data
from feedmill.cli.app import app
from feedmill.storage import open_store
from helpers.tokenizer_data import tokenizer_file
from helpers.web_archives import archive, pages

TAGGER, MODEL = "char_length_v1", data.GOLDEN / "models/static"


class Verb(NamedTuple):
    """A command that writes.

    Attributes:
        words: with ``{src}`` for the folder of inputs, ``{out}`` for the place that is written to, ``{conf}`` for a
            folder of this machine, ``{tok}`` for a tokenizer, and ``{size}`` for the size of a third of the tokens.
        needs: inputs that are in that place before.
        files: configurations by path, with the same words in both; braces of their own are doubled.
    """

    words: str
    needs: tuple[str, ...] = ()
    files: Mapping[str, str] = MappingProxyType({})


def _mix(out: str) -> str:
    return (
        "streams: [{{name: kept, documents: ['{src}/documents/*'], attributes: [quality],"
        " filter: {{include: ['$.attributes[?(@.good[0][2] >= 0.4)]']}},"
        f" output: {{{{path: '{out}/kept', max_size_in_bytes: 4000}}}}}}}}]"
    )


_PIPELINE = """
steps:
  - {{verb: index, inputs: ['{out}/x.jsonl'], outputs: ['{out}/x.idx']}}
  - {{verb: tokenize, inputs: ['{out}/x.jsonl'], outputs: ['{out}/t'],
     options: {{tokenizer: '{tok}', formats: [pbin]}}}}
"""
_TOKENIZER = """
tokenizer: {{component_key: tokenizer, variant_key: pretrained_hf_tokenizer,
  config: {{pretrained_model_name_or_path: '{tokens}', padding: false, truncation: false}}}}
"""
_PACK = (
    """
settings: {{src_path: '{src}/x.jsonl', dst_path: '{out}/p.pbin', jq_pattern: .text,
  num_cpus: 1, eod_token: <|endoftext|>, processing_batch_size: 5, raw_samples_queue_size: 9,
  processed_samples_queue_size: 9}}
"""
    + _TOKENIZER
)
_RESHARD = """
source_prefixes: [{{prefix: '{src}/dolma', sample_rate: 1.5}}]
destination_prefix: '{out}/d'
max_num_files: 2
max_workers: 1
"""

_RECIPE = "{{seed: 7, blend: [{{path: '{src}/x.jsonl', weight: 1}}]}}"

_SAMPLES = {
    "import": Verb("import {src}/photos {out}/set --max-shard-samples 3 --workers 1"),
    "import documents": Verb("import {src}/notes {src}/table.csv {out}/docs --compression gz --workers 1"),
    "import episodes": Verb("import {src}/robot {out}/set --max-shard-samples 1 --workers 1"),
    "reshard": Verb("edit reshard {src}/tars {out}/wds --max-shard-samples 7"),
    "webdataset": Verb("convert {src}/tars {out}/wds --to webdataset"),
    "wds": Verb("convert {src}/x.jsonl {out}/wds --to wds"),
    "wids": Verb("convert {src}/tars {out}/wds --to wds --wids --allow-loss"),
    "jsonl": Verb("convert {src}/tars {out}/c.jsonl --to jsonl --allow-loss"),
    "mds": Verb("convert {src}/tars {out}/mds --to mds"),
    "parquet": Verb("convert {src}/x.jsonl {out}/c.parquet --to parquet"),
    "vla": Verb("convert {src}/tars {out}/vla --to vla"),
    "npz": Verb("convert {src}/x.jsonl {out}/npz --to npz"),
    "lerobot": Verb("convert {src}/robot {out}/mds --to mds"),
    "prepare": Verb("prepare {out}/plain --split-ratio 8,2,0", ("plain",)),
    "prepare jsonl": Verb("prepare {out}/x.jsonl --split-ratio 8,2,0", ("x.jsonl",)),
    "prepare-media": Verb("edit prepare-media {out}/tars --media-by-extension", ("tars",)),
    "prepare-media files": Verb("edit prepare-media {out}/photos --media-by-extension", ("photos",)),
    "append": Verb("edit append {out}/tars {src}/more", ("tars",)),
    "add-parts": Verb("edit add-parts {src}/tars {src}/parts --into {out}/joined"),
    "repair": Verb("edit repair {out}/plain", ("plain",)),
    "repair jsonl": Verb("edit repair {out}/bad.jsonl", ("bad.jsonl",)),
    "report": Verb("serve {src}/tars --export {out}/report.html"),
    "preview": Verb("show {out}/pictures --sheet {out}/sheet.png", ("pictures",)),
}
_DOCUMENTS = {
    "extract": Verb(f"documents extract {{src}}/crawl -o {{out}}/web -t {TAGGER} --workers 1"),
    "tag": Verb(f"tag {{out}}/documents -t {TAGGER} --name a --workers 1", ("documents",)),
    "tag elsewhere": Verb(f"tag {{src}}/documents -t {TAGGER} --name a --output {{out}}/attributes/a --workers 1"),
    "embed": Verb(f"documents embed {{out}}/documents --model {MODEL} --workers 1", ("documents",)),
    "dedupe": Verb("dedupe {out}/documents", ("documents",)),
    "dedupe paragraphs": Verb("dedupe {out}/documents --by paragraphs --name p", ("documents",)),
    "dedupe substrings": Verb("dedupe {out}/documents --by substrings --length 20 --name s", ("documents",)),
    "decontaminate": Verb(
        "documents decontaminate {out}/documents --against {src}/documents --workers 1", ("documents",)
    ),
    "neardedupe": Verb("dedupe --near {out}/documents", ("documents",)),
    "convert documents": Verb("convert {src}/documents {out}/d --to jsonl.zst"),
    "filter": Verb("filter {src}/x.jsonl {out}/f.jsonl --min-length 10"),
    "filter documents": Verb("filter {conf}/mix.yaml --workers 1", files={"{conf}/mix.yaml": _mix("{out}")}),
    "stat": Verb("documents stat {out}/documents --plot-to {out}/plot.png --workers 1", ("documents",)),
    "plan": Verb("plan {conf}/r.yaml --samples 100 --plot-to {out}/plan.png", ("x.jsonl",), {"{conf}/r.yaml": _RECIPE}),
    "run": Verb("run {out}/pipeline.yaml", ("x.jsonl",), {"{out}/pipeline.yaml": _PIPELINE}),
}
_TOKENS = {
    "cells": Verb("mixture cells {out}/x.jsonl --by id", ("x.jsonl",)),
    "tokenize": Verb("tokenize {src}/x.jsonl -o {out}/t -t {tok} --to pbin,megatron,ds,dolma"),
    "tokenize vla": Verb("tokenize {src}/x.jsonl -o {out}/t -t {tok} --to vla-text --seq-len 32"),
    "tokenize numbered": Verb("tokenize {src}/x.jsonl -o {out}/t -t {tok} --to ds --max-file-size {size}"),
    "index": Verb("tokens index {out}/x.jsonl", ("x.jsonl",)),
    "index tokens": Verb("tokens index {out}/t.pbin", ("t.pbin",)),
    "merge": Verb("tokens merge {src}/t.pbin {src}/t.pbin {out}/m.pbin"),
    "merge jsonl": Verb("tokens merge {src}/x.jsonl {src}/x.jsonl {out}/m.jsonl"),
    "merge megatron": Verb("tokens merge {src}/t.bin {src}/t.pbin {out}/m.bin"),
    "merge numbered": Verb("tokens merge {src}/t.ds {src}/t.ds {out}/m.ds --max-file-size {size}"),
    "shuffle": Verb("tokens shuffle {src}/t.ds {out}/s.ds --seed 1"),
    "shuffle jsonl": Verb("tokens shuffle {src}/x.jsonl {out}/s.jsonl --seed 1"),
    "shuffle megatron": Verb("tokens shuffle {src}/t.bin {out}/s.bin --seed 1"),
    "shuffle numbered": Verb("tokens shuffle {src}/t.pbin {out}/s.pbin --seed 1 --max-file-size {size}"),
    "split": Verb("tokens split {src}/x.jsonl {out}/x.{{part}}.jsonl --ratio 8,2 --seed 3"),
    "split tokens": Verb("tokens split {src}/t.pbin {out}/t.{{part}}.pbin --ratio 8,2 --seed 3"),
    "filter tokens": Verb("filter {src}/t.pbin {out}/f.pbin --min-length 10"),
    "convert levanter": Verb("convert {src}/levanter {out}/c --to pbin --allow-loss"),
    "convert ds": Verb("convert {src}/t.pbin {out}/c --to ds"),
    "convert megatron": Verb("convert {src}/t.pbin {out}/c --to megatron"),
    "convert dolma": Verb("convert {src}/t.pbin {out}/c --to dolma"),
    "convert vla-text": Verb("convert {src}/t.pbin {out}/c --to vla-text --seq-len 31 --allow-loss"),
}
OTHERS: dict[str, Verb] = {
    "dolma tag": Verb(
        f"compat dolma tag --documents {{out}}/documents/* --taggers {TAGGER} --experiment a --processes 1",
        ("documents",),
    ),
    "dolma dedupe": Verb(
        "compat dolma dedupe --documents {out}/documents/* --dedupe.name x --dedupe.documents.attribute_name x"
        " --dedupe.documents.key $.text --bloom_filter.file {conf}/f.bin --bloom_filter.read_only=false"
        " --bloom_filter.estimated_doc_count 1000 --bloom_filter.desired_false_positive_rate 1e-6 --processes 1",
        ("documents",),
    ),
    "dolma mix": Verb("compat dolma -c {conf}/mix.yaml mix --processes 1", files={"{conf}/mix.yaml": _mix("{out}")}),
    "dolma warc": Verb(
        "compat dolma warc --documents {src}/crawl/* --destination {out}/pages --source_name web --processes 1"
    ),
    "dolma stat": Verb("compat dolma stat --attributes {src}/attributes/quality/* --report {out}/report --processes 1"),
    "dolma tokens": Verb(
        "compat dolma tokens --documents {src}/documents/*.gz --destination {out}/tokens --tokenizer.name_or_path {tok}"
        " --tokenizer.eos_token_id 0 --dtype uint16"
    ),
    "dolma reshard": Verb("compat dolma -c {conf}/r.yaml reshard", files={"{conf}/r.yaml": _RESHARD}),
    "energon prepare": Verb(
        "compat energon prepare {out}/plain --non-interactive --split-ratio 8,2,0 --sample-type CrudeWebdataset",
        ("plain",),
    ),
    "energon prepare-media": Verb("compat energon prepare-media {out}/photos --media-by-extension", ("photos",)),
    "megatron preprocess_data": Verb(
        "compat megatron preprocess_data --input {src}/x.jsonl --output-prefix {out}/m --json-keys text --workers 1"
        " --tokenizer-type HuggingFaceTokenizer --tokenizer-model {tok}"
    ),
    "megatron merge_datasets": Verb("compat megatron merge_datasets --input {src}/pairs --output-prefix {out}/m"),
    "modalities create_raw_index": Verb(
        "compat modalities data create_raw_index {src}/x.jsonl --index_path {out}/x.idx"
    ),
    "modalities pack_encoded_data": Verb(
        "compat modalities data pack_encoded_data {conf}/p.yaml", files={"{conf}/p.yaml": _PACK}
    ),
    "modalities merge_packed_data": Verb(
        "compat modalities data merge_packed_data {src}/t.pbin {src}/u.pbin {out}/m.pbin"
    ),
    "modalities shuffle_tokenized_data": Verb(
        "compat modalities data shuffle_tokenized_data --input_data_path {src}/t.pbin --output_data_path {out}/s.pbin"
        " --seed 1"
    ),
    "modalities shuffle_jsonl_data": Verb(
        "compat modalities data shuffle_jsonl_data --input_data_path {src}/x.jsonl --output_data_path {out}/s.jsonl"
        " --seed 1"
    ),
    "modalities create_shuffled_dataset_chunk": Verb(
        "compat modalities data create_shuffled_dataset_chunk --input_file_list_path {conf}/list"
        " --input_data_root_path {src} --output_chunk_file_path {out}/c.pbin"
        " --chunk_id 0 --num_chunks 2 --global_seed 1",
        files={"{conf}/list": "t.pbin\nu.pbin\n"},
    ),
    "modalities create_shuffled_jsonl_chunk": Verb(
        "compat modalities data create_shuffled_jsonl_chunk --input_file_list_path {conf}/list"
        " --input_data_root_path {src} --output_chunk_file_path {out}/c.jsonl"
        " --chunk_id 0 --num_chunks 2 --global_seed 1",
        files={"{conf}/list": "x.jsonl\n"},
    ),
    "nanotron preprocess_data": Verb(
        "compat nanotron preprocess_data --tokenizer-name-or-path {tok} --output-folder {out}/n --n-tasks 2 --workers 1"
        " --logging-dir {conf}/logs jsonl --dataset {src}/rows"
    ),
    "vla manifest": Verb("compat vla manifest {out}/robotics --name m.jsonl", ("robotics",)),
    "vla stats": Verb("compat vla stats {src}/robotics --output {out}/stats.json"),
    "vla merge-stats": Verb(
        "compat vla merge-stats {src}/robotics/stats.json {src}/robotics/stats.json --output {out}/s.json"
    ),
    "vla windows": Verb("compat vla windows {src}/robot -o {out}/w --shard-samples 4 --workers 1"),
}
"""Commands of other tools."""
VERBS: dict[str, Verb] = {**_SAMPLES, **_DOCUMENTS, **_TOKENS, **OTHERS}
"""By name."""
_READS = {
    "": "check trace bench",
    "edit": "mount",
    "tokens": "decode numbers",
    "compat energon": "info lint preview mount",
    "compat dolma": "list",
    "compat vla": "plan",
}
ELSEWHERE: dict[str, str] = {
    **{f"{group} {verb}".strip(): "only reads" for group, verbs in _READS.items() for verb in verbs.split()},
    "demo": "writes sample data to a folder of this machine",
    "documents forget": "writes its report to a folder of this machine; refuses a URL",
    "cache": "fills the cache of this machine",
    "tokens lengths": "fills the cache of this machine",
    "mixture propose": "writes recipes whose paths depend on the folder",
    "mixture fit": "writes a recipe whose paths depend on the folder",
    "mixture compare": "only reads",
    "edit delete": "is refused in an object store",
    "compat energon checkpoint info": "only reads",
    "compat energon checkpoint redist": "writes files of torch.save to a folder of this machine",
    "compat megatron recipe": "needs the arguments of a run; writes one small file",
    "compat modalities data prepare_instruction_tuning_data": "names its folder by a hash with the place in it",
    "compat nanotron preprocess_data hf": "writes as 'nanotron preprocess_data jsonl' does",
}
"""Verbs without a row, and why."""


def make(folder: Path, size: int) -> None:
    """Inputs of all verbs, of some `size` bytes a sample."""
    order = random.Random(0)
    words = [f"w{number}" for number in range(2000)]

    def text(characters: int) -> str:
        return " ".join(order.choices(words, k=max(12, characters // 5)))

    for name, count in (("tars", 40), ("more", 10)):
        samples = [
            {"__key__": f"{name}{i:03}", "json": {"text": f"t {i}"}, "bin": order.randbytes(size)} for i in range(count)
        ]
        fm.write(str(folder / name), samples, progress=False)
    captions = [{"__key__": f"tars{i:03}", "txt": text(size)} for i in range(40)]
    fm.write(str(folder / "parts"), captions, progress=False)
    (folder / "plain").mkdir()
    for shard in (folder / "tars").rglob("*.tar"):
        (folder / "plain" / shard.name).write_bytes(shard.read_bytes())
    documents(folder, text, size)
    media(folder)
    data.robot(folder)
    data.robotics(folder)
    (folder / "r").rename(folder / "robotics")
    shutil.copytree(data.GOLDEN / "sources/levanter/text/train", folder / "levanter")
    tokens(folder)


def documents(folder: Path, text: Any, size: int) -> None:
    """Documents with attributes, and lines."""
    for name in ("documents", "attributes/quality", "rows", "notes"):
        (folder / name).mkdir(parents=True)
    for number in range(3):
        rows = [
            {"id": f"{number}-{i}", "text": text(size) if i % 5 else "the same text " * 9, "source": "x"}
            for i in range(30)
        ]
        scores = [{"id": row["id"], "attributes": {"good": [[0, 9, i % 7 / 6]]}} for i, row in enumerate(rows)]
        for path, lines in (("documents", rows), ("attributes/quality", scores)):
            with gzip.GzipFile(folder / f"{path}/d{number}.jsonl.gz", "wb", mtime=0) as file:
                file.writelines(json.dumps(line).encode() + b"\n" for line in lines)
        (folder / f"notes/note {number}.txt").write_text(text(size))
    lines = [json.dumps({"id": str(i), "text": text(size)}) for i in range(60)]
    (folder / "x.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "bad.jsonl").write_text("\n".join([*lines[:30], "{bad", *lines[30:]]) + "\n")
    for number in range(2):
        (folder / f"rows/{number}.jsonl").write_text("\n".join(lines[30 * number : 30 * number + 30]) + "\n")
    (folder / "table.csv").write_text("id,text\n" + "".join(f"{i},{text(size)}\n" for i in range(30)))


def media(folder: Path) -> None:
    """Images with captions, images in shards, and pages of the web."""
    (folder / "photos").mkdir()
    for number in range(9):
        (folder / f"photos/{number}.png").write_bytes(data.picture(number))
        (folder / f"photos/{number}.txt").write_text(f"Picture {number}.")
    data.pictures(folder, "pictures")
    for number in range(3):
        archive(folder / f"crawl/{number}.warc.gz", pages(60 + number, f"s{number}"))


def tokens(folder: Path) -> None:
    """The tokens of the lines in files of several kinds."""
    for name, words in (("t", "--to pbin,megatron,ds"), ("dolma/a", "--to dolma")):
        words = f"tokenize {folder}/x.jsonl -o {folder}/{name} -t {tokenizer_file('tok1k')} {words}"
        done = CliRunner().invoke(app, words.split())
        assert done.exit_code == 0, done.output
    shutil.copy(folder / "t.pbin", folder / "u.pbin")
    (folder / "pairs").mkdir()
    for name in ("a", "b"):
        for suffix in (".bin", ".idx"):
            shutil.copy(folder / f"t{suffix}", folder / f"pairs/{name}{suffix}")


def arrange(verb: Verb, source: Path, place: str, conf: Path) -> list[str]:
    """Put the inputs of a verb that are to be in a place there, and its configurations; return its command line."""
    store = open_store(place)
    for name in verb.needs:
        path = source / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                store.write_bytes(str(file.relative_to(source)), file.read_bytes())
    tokenizer = tokenizer_file("tok1k")
    size = (source / "t.ds").stat().st_size // 3
    names = {"src": source, "out": place, "conf": conf, "tok": tokenizer, "tokens": tokenizer.parent, "size": size}
    for name, content in verb.files.items():
        folder, _, name = name.format(**names).rpartition("/")
        open_store(folder).write_bytes(name, content.format(**names).encode())
    return [word.format(**names) for word in shlex.split(verb.words)]
