"""Commands of all verbs that write, their inputs, and how the state of a folder is compared."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.indexing.prepare import prepare
from feedmill.mixture.verbs.propose import propose
from helpers.mixture_data import small_fits
from helpers.tars import write_tar
from helpers.web_archives import archive, pages

GOLDEN = Path(__file__).parents[1] / "golden"

GOOD: dict[str, list[str]] = {
    "import": [
        "import texts imported",
        "import photos imported --max-shard-samples 2",
        "import table.csv imported --compression gz",
    ],
    "prepare": [
        "prepare plain --split-ratio 1,1,0 --sample-type CaptioningSample"
        ' --field-map \'{"image": "jpg", "caption": "txt"}\'',
        "prepare lines.jsonl --split-ratio 3,1,0",
        "prepare coco",
        "prepare plain --media-metadata-by-extension",
        "prepare damaged --on-error skip",
    ],
    "prepare-media": ["edit prepare-media coco --media-by-extension", "edit prepare-media photos --media-by-extension"],
    "convert": ["convert coco coco_mds --to mds --allow-loss", "convert lines.jsonl lines --to webdataset"],
    "reshard": [
        "edit reshard coco coco2 --max-shard-samples 2",
        "edit reshard plain plain2 --max-shard-size 4kB --shuffle 3",
        "edit reshard coco more --max-shard-samples 3 --overwrite",
        "edit reshard lines.jsonl lines --max-shard-samples 4",
    ],
    "append": [
        "edit append coco more",
        "edit append coco more --max-shard-samples 1 --pattern 'new/%03d.tar'",
        "edit append coco coco --prefix again/",
    ],
    "add-parts": [
        "edit add-parts coco parts",
        "edit add-parts coco parts --into joined",
        "edit add-parts coco few --on-error skip",
        "edit add-parts coco few --into joined --on-error skip",
    ],
    "delete": [
        "edit delete coco 000001 --yes",
        "edit delete coco 000000 000001 000002 --yes",
        "edit delete coco 000001 x --on-error skip -y",
    ],
    "repair": ["edit repair coco", "edit repair damaged", "edit repair bad.jsonl", "edit repair damaged/shard_1.tar"],
    "extract": ["documents extract crawl -o pages"],
    "tag": [
        "tag web/documents -t char_length_v1 --name lengths",
        "tag web/documents -t char_length_v1 -t bytes_length_v1 --output there",
    ],
    "embed": [
        "documents embed web/documents --model static",
        "documents embed web/documents --model static --to parquet",
        *("documents embed coco --model vision", "documents embed coco --model vision --to parquet"),
    ],
    "dedupe": [
        *("dedupe --near web/documents", "dedupe --near web/documents --signatures signs"),
        "dedupe web/documents",
        "dedupe web/documents --by paragraphs --name copies",
        "dedupe web/documents --by substrings --length 20 --name passages",
        "dedupe web/documents --bloom seen.bin --items 1000",
        "dedupe web/documents --against web/documents",
    ],
    "decontaminate": ["documents decontaminate web/documents --against docs.jsonl"],
    "filter": ["filter books.pbin short.pbin --max-length 100", "filter mix.yaml"],
    "cells": ["mixture cells books.pbin --by '{column: tokens, quantiles: 3}'", "mixture cells docs.jsonl --by id"],
    "propose": ["mixture propose blend.yaml -o swarm -n 3", "mixture propose blend.yaml --output swarm --target 1k"],
    "fit": ["mixture fit runs losses.csv -o best.yaml", "mixture fit runs losses.csv -o b.yaml --on-error skip"],
    "run": ["run pipeline.yaml", "run filtering.yaml"],
    "tokenize": [
        "tokenize docs.jsonl -o tokens/docs -t tokenizer",
        "tokenize web -o tokens/docs -t tokenizer --to pbin,ds,megatron,dolma",
        "tokenize docs.jsonl -o tokens/docs -t tokenizer --max-file-size 200",
        "tokenize bad.jsonl -o tokens/docs -t tokenizer --on-error skip",
        "tokenize docs.jsonl -o tokens/docs -t tokenizer --to vla-text --seq-len 8",
    ],
    "merge": [
        "tokens merge books.pbin news.pbin all.pbin",
        "tokens merge books.pbin news.pbin 'all_{part}.ds' --max-tokens-per-file 100",
        "tokens merge books.pbin all.bin",
        "tokens merge lines.jsonl more.jsonl all.jsonl",
    ],
    "shuffle": [
        "tokens shuffle books.pbin mixed.ds",
        "tokens shuffle books.pbin 'mixed_{part}.pbin' --max-file-size 2kB --seed 3",
    ],
    "split": [
        "tokens split books.pbin '{part}.pbin' --ratio 3,1",
        "tokens split lines.jsonl 'lines_{part}.jsonl' --chunks 3",
    ],
    "index": [
        "tokens index lines.jsonl",
        "tokens index bad.jsonl --on-error skip",
        "tokens index books.pbin",
        "tokens index flat.bin --eos-id 0 --token-size 2",
    ],
}
"""Verb -> commands."""
BAD: dict[str, list[str]] = {
    "import": [
        "import nowhere imported",
        "import texts texts",
        "import empty imported",
        "import texts imported --encoding x",
    ],
    "prepare": [
        "prepare nowhere",
        "prepare damaged",
        "prepare twice",
        "prepare plain --split-ratio 0,0",
        'prepare plain --sample-type CaptioningSample --field-map \'{"image": "png", "caption": "txt"}\'',
        "prepare bad.jsonl",
        "prepare plain --split-parts train:x",
    ],
    "prepare-media": [
        "edit prepare-media nowhere --media-by-extension",
        "edit prepare-media texts --media-by-extension",
    ],
    "convert": [
        "convert nowhere x --to mds",
        "convert coco x --to nothing",
        "convert coco more --to webdataset",
        "convert coco coco.jsonl --to jsonl",
        "convert coco tokenizer --to mds",
    ],
    "reshard": [
        "edit reshard nowhere x --max-shard-samples 2",
        "edit reshard coco more --max-shard-samples 2",
        "edit reshard coco x",
        "edit reshard coco coco/below --max-shard-samples 2",
        "edit reshard books.pbin x --max-shard-samples 2",
        "edit reshard lines.jsonl x --max-shard-size 1kB",
    ],
    "append": [
        "edit append coco coco",
        "edit append plain more",
        "edit append coco nowhere",
        "edit append typed parts --prefix x/",
    ],
    "add-parts": [
        "edit add-parts coco few",
        "edit add-parts coco coco",
        "edit add-parts plain parts",
        "edit add-parts coco more --on-error skip",
        "edit add-parts coco parts --part-name nothing",
        "edit add-parts coco parts --into more",
    ],
    "delete": ["edit delete coco x --yes", "edit delete nowhere 000001 --yes", "edit delete more 000006 000007 --yes"],
    "repair": ["edit repair nowhere", "edit repair books.pbin", "edit repair wholly.jsonl"],
    "extract": [
        "documents extract nowhere -o pages",
        "documents extract texts -o pages",
        "documents extract crawl -o pages --linearizer x",
    ],
    "tag": [
        "tag nowhere -t char_length_v1",
        "tag web/documents -t nothing_v1",
        "tag noid/documents -t char_length_v1",
        "tag none/documents -t char_length_v1",
        "tag noid/documents -t char_length_v1 --on-error skip",
    ],
    "embed": [
        "documents embed nowhere --model static",
        "documents embed web/documents --model texts",
        "documents embed web/documents --model vision",
        *("documents embed coco --model vision --image gif", "documents embed photos --model vision"),
        "documents embed noid/documents --model static",
        "documents embed none/documents --model static",
    ],
    "dedupe": [
        "dedupe --near nowhere",
        "dedupe --near noid/documents",
        "dedupe --near none/documents",
        "dedupe --near web/documents --signatures texts",
        "dedupe nowhere",
        "dedupe docs.jsonl",
        "dedupe web/documents --ngram 3",
        "dedupe none/documents",
        "dedupe notext/documents",
        "dedupe web/documents --bloom nothing.bin --read-only",
    ],
    "decontaminate": [
        "documents decontaminate nowhere --against docs.jsonl",
        "documents decontaminate web/documents --against nowhere",
        "documents decontaminate noid/documents --against docs.jsonl",
        "documents decontaminate none/documents --against docs.jsonl",
    ],
    "filter": [
        "filter nowhere.pbin short.pbin",
        "filter books.pbin short.pbin --min-length 100000",
        "filter nowhere.yaml",
        "filter typo.yaml",
        "filter nothing.yaml",
    ],
    "cells": [
        "mixture cells nowhere.jsonl --by id",
        "mixture cells docs.jsonl",
        "mixture cells docs.jsonl --by nothing",
        "mixture cells books.pbin --by topic",
    ],
    "propose": [
        "mixture propose nowhere.yaml -o swarm",
        "mixture propose pipeline.yaml -o swarm",
        "mixture propose blend.yaml -o coco",
        "mixture propose blend.yaml -o swarm --max-repeats 1",
        "mixture propose blend.yaml -o swarm --min-share 0.6",
        "mixture propose blend.yaml -o swarm --max-share x=0.6",
        "mixture propose blend.yaml -o swarm --concentration 9,1",
    ],
    "fit": [
        "mixture fit coco losses.csv -o best.yaml",
        "mixture fit runs nowhere.csv -o best.yaml",
        "mixture fit runs losses.csv -o lines.jsonl",
        "mixture fit runs losses.csv -o blend.yaml",
        "mixture fit runs losses.csv -o best.yaml --metric x",
        "mixture fit runs table.csv -o best.yaml",
    ],
    "run": ["run nowhere.yaml", "run broken.yaml"],
    "tokenize": [
        "tokenize nowhere -o t -t tokenizer",
        "tokenize docs.jsonl -o t -t nothing",
        "tokenize docs.jsonl -o t -t tokenizer --text body",
        "tokenize docs.jsonl -o t -t tokenizer --text body --on-error skip",
        "tokenize docs.jsonl -o books -t tokenizer",
        "tokenize none -o t -t tokenizer",
        "tokenize bad.jsonl -o t -t tokenizer",
        "tokenize docs.jsonl -o t -t tokenizer --to vla-text",
    ],
    "merge": [
        "tokens merge nowhere.pbin all.pbin",
        "tokens merge books.pbin news.pbin",
        "tokens merge books.pbin books.pbin --overwrite",
        "tokens merge books.pbin lines.jsonl all.pbin",
        "tokens merge books.pbin all.pbin --max-tokens-per-file 5",
    ],
    "shuffle": [
        "tokens shuffle nowhere.pbin x.pbin",
        "tokens shuffle books.pbin news.pbin",
        "tokens shuffle books.pbin x.txt",
    ],
    "split": [
        "tokens split nowhere.pbin '{part}.pbin' --chunks 2",
        "tokens split books.pbin x.pbin --chunks 2",
        "tokens split books.pbin '{part}.pbin'",
        "tokens split books.pbin '{part}.pbin' --plan nowhere.yaml",
    ],
    "index": [
        "tokens index nowhere.jsonl",
        "tokens index bad.jsonl",
        "tokens index indexed.jsonl",
        "tokens index flat.bin",
        "tokens index tokenizer",
    ],
}
"""Verb -> commands that fail."""


def captions(first: int, count: int) -> list[tuple[str, bytes]]:
    return [
        (f"{n:06d}.{part}", body)
        for n in range(first, first + count)
        for part, body in (("jpg", picture()), ("txt", b"one"))
    ]


def picture() -> bytes:
    image = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(image, "JPEG")
    return image.getvalue()


def data(root: Path) -> None:
    """Inputs of all commands."""
    for folder, first in (("coco", 0), ("plain", 0), ("typed", 0)):
        write_tar(root / folder / "shard_0.tar", captions(first, 3))
        write_tar(root / folder / "shard_1.tar", captions(first + 3, 3))
    write_tar(root / "more/shard_0.tar", captions(6, 2))
    write_tar(root / "parts/shard_0.tar", [(f"{number:06d}.cls", b"1") for number in range(6)])
    write_tar(root / "few/shard_0.tar", [("000001.cls", b"1")])
    for folder in ("coco", "more", "parts", "few"):
        prepare(root / folder, split_ratio="1,0,0", progress=False)
    fields = {"image": "jpg", "caption": "txt"}
    prepare(root / "typed", sample_type="CaptioningSample", field_map=fields, progress=False)
    write_tar(root / "damaged/shard_0.tar", captions(0, 3))
    whole = write_tar(root / "damaged/shard_1.tar", captions(3, 3)).read_bytes()
    (root / "damaged/shard_1.tar").write_bytes(whole[:3000])
    for number in range(2):
        write_tar(root / f"twice/shard_{number}.tar", captions(0, 2))
    (root / "texts").mkdir()
    (root / "photos").mkdir()
    for number in range(3):
        (root / f"texts/note_{number}.txt").write_text(f"Note {number} is a text.\n")
        (root / f"photos/{number}.jpg").write_bytes(picture())
        (root / f"photos/{number}.txt").write_text("A black square.")
    (root / "photos/3.jpg").write_bytes(picture())  # without a caption
    (root / "empty").mkdir()
    (root / "table.csv").write_text("id,text\na,One text.\nb,Another text.\n")
    documents(root)
    for name in ("books", "news"):
        source = {"books": "main_2b", "news": "crlf_2b"}[name]
        shutil.copyfile(GOLDEN / f"modalities/{source}.pbin", root / f"{name}.pbin")
    (root / "flat.bin").write_bytes(np.asarray([5, 6, 0, 7, 0], "<u2").tobytes())
    shutil.copytree(GOLDEN / "nanosets/tok1k", root / "tokenizer")
    for model in ("static", "vision"):
        shutil.copytree(GOLDEN / "models" / model, root / model)
    archive(root / "crawl/a.warc.gz", pages(3))
    propose(root / "blend.yaml", root / "runs", count=9)


def documents(root: Path) -> None:
    rows = [{"id": f"d{n}", "text": f"Document {n} has a few words. " * (n + 1)} for n in range(6)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    for folder in ("web", "noid", "notext", "none"):
        (root / folder / "documents").mkdir(parents=True)
    for path in ("docs.jsonl", "lines.jsonl", "more.jsonl", "indexed.jsonl", "web/documents/part-0.jsonl"):
        (root / path).write_text(lines)
    (root / "indexed.idx").write_bytes(b"")
    (root / "web/documents/part-1.jsonl").write_text(lines.replace('"d', '"e'))
    (root / "noid/documents/part-0.jsonl").write_text('{"text": "one"}\n')
    (root / "notext/documents/part-0.jsonl").write_text('{"id": "one"}\n')
    (root / "none/documents/part-0.jsonl").write_text("")
    (root / "bad.jsonl").write_text(lines + "not JSON\n" + lines)
    (root / "wholly.jsonl").write_text("not JSON\n")
    stream = "streams: [{name: web, documents: [web/documents/*], filter: {include: [%s]}, output: {path: kept}}]\n"
    (root / "mix.yaml").write_text(stream % '"$.id"')
    (root / "typo.yaml").write_text((stream % '"$.id"').replace("filter:", "fliter:"))
    (root / "nothing.yaml").write_text(stream % '"$.nothing"')
    step = "{verb: dedupe, inputs: [web/documents], outputs: [web/attributes/copies], options: {name: copies}}"
    (root / "blend.yaml").write_text("{unit: tokens, blend: [{path: books.pbin}, {path: news.pbin}]}")
    (root / "losses.csv").write_text("run,loss\n" + "".join(f"run-00{n},{3 + n % 4}\n" for n in range(1, 10)))
    (root / "pipeline.yaml").write_text(f"steps: [{step}]")
    (root / "broken.yaml").write_text(f"steps: [{step.replace('web/', 'notext/', 1)}]")
    after = "{verb: filter, inputs: [web], outputs: [kept], options: {inputs: mix.yaml}}"
    (root / "filtering.yaml").write_text(f"steps: [{after}]")


def state(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, time of change and content of every file and folder; a folder's content is the names in it."""
    found = {}
    for folder, _, names in os.walk(root):
        for path in [folder, *(os.path.join(folder, name) for name in names)]:
            status = os.lstat(path)
            content = b"" if os.path.isdir(path) else Path(path).read_bytes()
            found[os.path.relpath(path, root)] = (status.st_mode, status.st_mtime_ns, content)
    return found


def run(command: str, *more: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        if command.startswith("mixture fit"):
            small_fits(patch)
        done = CliRunner().invoke(app, [*shlex.split(command), *more])
    assert done.exception is None or isinstance(done.exception, SystemExit), command
    assert "defect" not in done.output, done.output
    return done


def names(out: str, path: str) -> bool:
    """Return whether a planned name stands for a file."""
    if out.endswith("/"):
        return path.startswith(out)
    before, part, behind = out.partition("{part}")
    return path.startswith(before) and path.endswith(behind) if part else path == out


def is_companion(path: str, outputs: dict[str, Any]) -> bool:
    """Return whether a file belongs to another one: an index, a manifest, a lineage, a record, a lock."""
    folder, _, name = path.rpartition("/")
    if "/.feedmill/" in f"/{path}" or name.startswith(".feedmill"):
        return True
    stem = name.removesuffix(".idx") if name.endswith(".tar.idx") else ""
    beside = (".feedmill.json", ".lineage", ".feedmill-lock", ".feedmill.loss", ".feedmill.bounds", ".metadata")
    return (bool(stem) and f"{folder}/{stem}".lstrip("/") in outputs) or name.endswith(beside)


def error_of(text: str) -> Any:
    found = json.loads(text)
    error = dict(found.get("error") or (found.get("failed") or found.get("remaining"))[0])
    return {**error, "file": os.path.abspath(error.get("file") or "")}  # processes name it in full
