"""The readers and what is run over each input: small seeds made by the project's own writers, or golden files."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import FeedmillError
from fuzzing import corpus

Seeds = Mapping[str, list[Mapping[str, bytes]]]
Run = Callable[[Path, random.Random], None]
_SMALL = 40


strict = False
"""Whether valid inputs are read, none of which may be refused."""


class Defect(Exception):
    """A verb said that it met a defect of Feedmill."""


def cli(*words: str | Path) -> None:
    """A verb as the command line runs it. Raises what it let through."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if strict and result.exit_code:
        raise Defect(f"{words}: {result.output}")
    if "a defect of Feedmill" in result.output:
        raise Defect(result.output[result.output.index("a defect of Feedmill") :][:300])


def refusing(call: Callable[[], Any]) -> None:
    """A call that may refuse its input."""
    try:
        call()
    except FeedmillError:
        if strict:
            raise


def read_all(data: Any) -> None:
    """Samples with their parts decoded, keys, places, and words about them."""
    count = min(len(data), _SMALL)
    refusing(data.describe)
    refusing(data.fingerprint)
    for number in range(count):
        refusing(lambda n=number: [sample[name] for sample in data.read([n]) for name in sample])
    if count:
        refusing(lambda: data.find(data.locate(count - 1).key))
        refusing(lambda: data.read_raw(range(count)))


def dataset(target: str = "", *more: tuple[str, ...], **options: Any) -> Run:
    """Open it and read it all, and one or two verbs over it."""

    def run(folder: Path, rng: random.Random) -> None:
        url = str(folder / target) if target else str(folder)
        refusing(lambda: read_all(fm.open(url, **options)))
        verbs = [("show", url, "--count", "2"), ("check", url), *more]
        for words in rng.sample(verbs, rng.choice((0, 1, 1))):
            cli(*(word.format(url=url, folder=folder) for word in words))

    return run


def verbs(*lines: str) -> Run:
    """One of some command lines, in the input's folder."""

    def run(folder: Path, rng: random.Random) -> None:
        cli(*(word.format(folder=folder) for word in rng.choice(lines).split()))

    run.ways = len(lines)  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True)
class Reader:
    """What is fuzzed under one name.

    Attributes:
        build: writes one valid input into an empty folder; one for each form.
        run: what reads it.
        but: ends of the names of files that are left whole.
        names_files: whether it is a configuration, whose author may name any file; those outside are never written.
        weight: how often it is drawn; what is slow is drawn less.
    """

    name: str
    build: tuple[Callable[[Path], object], ...]
    run: Run
    but: tuple[str, ...] = ()
    weight: float = 1
    names_files: bool = False

    def damages(self, path: str) -> bool:
        return not path.endswith(self.but) if self.but else True


PREPARE = ("prepare", "{url}", "--split-ratio", "1,0,0", "--workers", "1", "--rescan")
READERS: list[Reader] = [
    Reader("arrow", (corpus.arrow, corpus.arrow_stream, corpus.arrow_dictionaries, corpus.arrow_stream_dictionaries), dataset("one.arrow"), weight=1.5),
    Reader("parquet", (corpus.parquet,), dataset(), weight=1.5),
    Reader("huggingface", (corpus.huggingface,), dataset()),
    Reader("mds", (corpus.mds, corpus.mds_zstd, corpus.mds_gz), dataset()),
    Reader("npz", (corpus.npz_shards, corpus.npz_packed, corpus.npz_written), dataset()),
    Reader("lerobot", (corpus.lerobot_v2, corpus.lerobot_v3), dataset()),
    Reader("img2dataset", (corpus.images_tar, corpus.images_files, corpus.images_parquet), dataset()),
    Reader("wids", (corpus.wids,), dataset("index.json")),
    Reader("tar", corpus.TARS, dataset("one.tar"), weight=2),
    Reader("webdataset", (corpus.shards,), dataset("", PREPARE)),
    Reader("energon", (corpus.prepared,), dataset("", PREPARE)),
    Reader("energon hashes", (corpus.prepared,), verbs("check {folder}", "check {folder} --read-samples", "show {folder}")),
    Reader("sqlite", (corpus.prepared,), dataset("", PREPARE), (".tar", ".idx", ".yaml", ".json", ".uuid", ".bin")),
    Reader("jsonl", (corpus.jsonl, corpus.jsonl_indexed), dataset("lines.jsonl", PREPARE)),
    Reader("vla", (corpus.vla, corpus.vla_golden), dataset()),
    Reader("vla statistics", (corpus.robotics,), verbs("compat vla stats {folder} --output {folder}/new.json", "show {folder}", "check {folder}"), weight=0.5),
    Reader("parts", corpus.PARTS, corpus.decode, weight=3),
    Reader("pbin", (corpus.pbin, corpus.pbin_legacy), dataset()),
    Reader("ds", (corpus.ds,), dataset()),
    Reader("megatron", (corpus.megatron,), dataset("all.bin")),
    Reader("dolma tokens", (corpus.dolma_tokens,), dataset()),
    Reader("token windows", (corpus.pbin,), dataset("", seq_len=3, reuse_last_target=False)),
    Reader("documents", (corpus.documents_gz, corpus.documents_zst, corpus.documents_plain), verbs(
        "tag {folder}/documents -t char_length_v1 -t gopher_v2 -t c4_v2 --workers 1", "documents stat {folder}/documents --workers 1",
        "tag {folder}/documents -t repetitions_v1 -t pii_regex_with_counts_fast_v2 --workers 1", "dedupe {folder}/documents/* --name d --workers 1",
    )),
    Reader("web archives", (corpus.warc_gz, corpus.warc_plain), verbs(
        "documents extract {folder} -o {folder}/o --workers 1", "documents extract {folder} -o {folder}/o --workers 1 --linearizer trafilatura --keep-html",
        "compat dolma warc --documents {folder}/a.* --destination {folder}/o --source_name s --pre.taggers cc_re",
    ), weight=0.7),
    Reader("mix", (corpus.mix_json, corpus.mix_yaml), verbs("filter {folder}/mix.json --workers 1", "filter {folder}/mix.yaml --workers 1", "compat dolma -c {folder}/mix.yaml mix", "compat dolma -c {folder}/mix.json mix"), names_files=True),
    Reader("dolma configs", (corpus.dolma_configs,), verbs("compat dolma -c {folder}/dedupe.json dedupe", "compat dolma -c {folder}/tag.yaml tag", "compat dolma -c {folder}/tokens.yaml tokens"), names_files=True),
    Reader("bloom", (corpus.bloom,), corpus.read_filter),
    Reader("recipes", (corpus.recipe,), verbs("plan {folder}/r.yaml", "plan {folder}/r.yaml --samples 20", "trace {folder}/r.yaml --step 0 --global-batch 4"), weight=0.7, names_files=True),
    Reader("metadatasets", (corpus.metadataset,), verbs("plan {folder}/m.yaml", "plan {folder}/v1.yaml"), weight=0.6, names_files=True),
    Reader("peers' recipes", (corpus.peers_recipes,), verbs("plan {folder}/n.yaml", "plan {folder}/v.yaml", "compat vla plan {folder}/v.yaml"), weight=0.7, names_files=True),
    Reader("tokenizer", (corpus.tokenizer,), verbs("tokenize {folder}/d.jsonl -o {folder}/out -t {folder}/tokenizer.json --eos <|eos|> --workers 1"), weight=0.3),
    Reader("modalities", (corpus.modalities,), verbs("compat modalities data pack_encoded_data {folder}/c.yaml", "compat modalities data create_raw_index {folder}/d.jsonl --index_path {folder}/x.idx"), weight=0.4, names_files=True),
    Reader("nanotron", (corpus.tokenizer,), verbs("compat nanotron preprocess_data --tokenizer-name-or-path {folder}/tokenizer.json --output-folder {folder}/o --n-tasks 1 jsonl --dataset {folder}/d.jsonl"), weight=0.2),
    Reader("loader state", (corpus.loader_state,), corpus.load_state, names_files=True),
    Reader("killed runs", (corpus.killed_append,), verbs("edit append {folder}/ds {folder}/more.jsonl --workers 1", "show {folder}/ds", "check {folder}/ds", "edit delete {folder}/ds s00001", PREPARE[0] + " {folder}/ds --split-ratio 1,0,0 --workers 1"), weight=0.6),
    Reader("token runs", (corpus.killed_tokenize,), verbs("tokenize {folder}/d.jsonl -o {folder}/out -t {folder}/tokenizer.json --eos <|eos|> --workers 1"), weight=0.3),
]  # fmt: skip


def make_seeds(scratch: Path, only: str | None) -> Seeds:
    """Of each reader, the files of its valid inputs. Every one of them is read once: it must not be refused."""
    out: dict[str, list[Mapping[str, bytes]]] = {}
    for reader in READERS:
        if only not in (None, reader.name):
            continue
        out[reader.name] = []
        for build in reader.build:
            folder = scratch / "seed"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            build(folder)
            files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
            out[reader.name].append(files)
    return out
