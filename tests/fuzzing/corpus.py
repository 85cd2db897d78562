"""Small valid inputs of every reader, each written into an empty folder; and the calls that are no verbs."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import os
import random
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from backports import zstd

import feedmill as fm
from feedmill.errors import FeedmillError
from feedmill.formats import pth
from feedmill.formats.bloom import new_bloom, read_bloom, write_bloom
from feedmill.formats.npz.arrays import npy, npz
from feedmill.formats.npz.write import WRITER
from feedmill.formats.tar.wids import write_wids
from feedmill.formats.tokens.dolma import write_dolma
from feedmill.formats.tokens.ds import write_ds
from feedmill.formats.tokens.megatron import write_megatron
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.indexing.manifests import write_manifest
from feedmill.indexing.prepare import prepare
from feedmill.samples import tenbin
from feedmill.samples.decode import Decoder
from feedmill.samples.encode import Encoder
from feedmill.storage import LocalStore
from helpers import foreign_datasets as sourcedata
from helpers.tars import make_shards, sparse_tar, tar_bytes, write_tar
from helpers.web_archives import archive, pages

COUNTS = [3, 2]
GOLDEN = Path(__file__).parents[1] / "golden"
FILES = [(f"s{n:05d}.{part}", body) for n in range(4) for part, body in (("txt", b"text"), ("json", b'{"n": 1}'))]
Build = Callable[[Path], object]


def arrow(folder: Path) -> None:
    sourcedata.arrow(folder, COUNTS)


def arrow_stream(folder: Path) -> None:
    extra = {"many": [[1, 2], [], [3]], "word": ["a", "b", None]}
    sourcedata.write_arrow(folder / "one.arrow", sourcedata.table(0, 3, **extra))


def arrow_dictionaries(folder: Path) -> None:
    words = pa.array(["a", "b", None]).dictionary_encode()
    extra = {"word": words, "tags": pa.ListArray.from_arrays([0, 2, 2, 3], words)}
    sourcedata.write_arrow(folder / "one.arrow", sourcedata.table(0, 3, **extra), form="file")


def arrow_stream_dictionaries(folder: Path) -> None:
    extra = {"word": pa.chunked_array([pa.array([word]).dictionary_encode() for word in "abc"])}
    sourcedata.write_arrow(folder / "one.arrow", sourcedata.table(0, 3, **extra), rows=1)


def parquet(folder: Path) -> None:
    sourcedata.parquet(folder, COUNTS)


def huggingface(folder: Path) -> None:
    sourcedata.huggingface(folder, COUNTS)


def mds(folder: Path) -> None:
    sourcedata.mds(folder, COUNTS)


def mds_zstd(folder: Path) -> None:
    sourcedata.mds(folder, COUNTS, lambda raw: bytes(zstd.compress(raw)), "zstd")


def mds_gz(folder: Path) -> None:
    sourcedata.mds(folder, COUNTS, gzip.compress, "gz")


def npz_shards(folder: Path) -> None:
    """As NumPy writes them."""
    sourcedata.npz(folder, COUNTS)


def npz_packed(folder: Path) -> None:
    """As NumPy writes them, compressed."""
    sourcedata.npz(folder, COUNTS, np.savez_compressed)


def npz_written(folder: Path) -> None:
    """As a conversion writes them: values of several lengths and shapes."""
    columns = {"text": "text", "image": "jpeg", "grid": "array:<f4", "label": "int"}
    rows = [[b"a" * n, b"\xff\xd8" * n, np.zeros((n, 2), "<f4"), n] for n in range(1, 5)]
    WRITER.write(LocalStore(folder), "0.npz", columns, rows)


def lerobot_v2(folder: Path) -> None:
    sourcedata.lerobot_v2(folder, COUNTS)


def lerobot_v3(folder: Path) -> None:
    sourcedata.lerobot_v3(folder, COUNTS)


def images_tar(folder: Path) -> None:
    sourcedata.images(folder, COUNTS, "webdataset")


def images_files(folder: Path) -> None:
    sourcedata.images(folder, COUNTS, "files")


def images_parquet(folder: Path) -> None:
    sourcedata.images(folder, COUNTS, "parquet")


def shards(folder: Path) -> None:
    make_shards(folder, COUNTS)


def wids(folder: Path) -> None:
    make_shards(folder, COUNTS)
    write_wids(LocalStore(folder), ["shards/shard_000.tar", "shards/shard_001.tar"], "index.json", name="shards")


def prepared(folder: Path) -> None:
    make_shards(folder, COUNTS)
    prepare(str(folder), split_ratio="1,0,0", progress=False)


def vla(folder: Path) -> None:
    make_shards(folder, COUNTS)
    write_manifest(str(folder), progress=False)


def vla_golden(folder: Path) -> None:
    shutil.copytree(GOLDEN / "vla" / "text", folder, dirs_exist_ok=True)


def robotics(folder: Path) -> None:
    shutil.copytree(GOLDEN / "vla" / "robotics", folder, dirs_exist_ok=True)


def jsonl(folder: Path) -> None:
    (folder / "lines.jsonl").write_text("".join(json.dumps({"n": n, "text": f"text {n} ü"}) + "\n" for n in range(5)))


def jsonl_indexed(folder: Path) -> None:
    jsonl(folder)
    prepare(str(folder / "lines.jsonl"), split_ratio="2,1,1", progress=False)


def _tar(data: Callable[[], bytes]) -> Build:
    return lambda folder: (folder / "one.tar").write_bytes(data())


TARS: tuple[Build, ...] = (
    *(_tar(functools.partial(tar_bytes, FILES, form=form, mtime=time)) for form, time in ((0, 0), (1, 0), (2, 1.5))),
    *(_tar(functools.partial(sparse_tar, form)) for form in ("gnu", "0.0", "0.1", "1.0")),
    _tar(lambda: tar_bytes([("x" * 120 + f"{n}.txt", b"a") for n in range(3)], form=1)),
)


def _part(name: str, data: Callable[[], bytes]) -> Build:
    return lambda folder: (folder / name).write_bytes(data())


def _picture(kind: str) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    pixels = np.arange(24 * 32 * 3, dtype=np.uint8).reshape(24, 32, 3)
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def _video() -> bytes:
    path = sourcedata.write_video(Path(os.environ["FUZZ_SCRATCH"]) / "v.mp4", range(4))
    return path.read_bytes()


ARRAYS = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.arange(5)}
_ENCODE = Encoder()


def _deflated() -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **ARRAYS)  # type: ignore[arg-type]
    return out.getvalue()


PARTS: tuple[Build, ...] = (
    *(_part(f"p.{ends}", functools.partial(_picture, kind)) for ends, kind in (("jpg", "JPEG"), ("png", "PNG"), ("webp", "WEBP"), ("tiff", "TIFF"), ("gif", "GIF"), ("bmp", "BMP"), ("ppm", "PPM"))),
    _part("p.npy", lambda: npy(ARRAYS["a"])), _part("p.npz", lambda: npz(ARRAYS)), _part("q.npz", _deflated),
    _part("p.pth", lambda: pth.dump(ARRAYS)), _part("p.ten", lambda: tenbin.encode([ARRAYS["a"]])),
    _part("p.json", lambda: b'{"a": [1, 2.5, "x", null], "b": {"c": true}}'), _part("p.cls", lambda: b"17"),
    _part("p.mp", lambda: _ENCODE("mp", {"a": [1, 2, "x"], "b": b"y"})), _part("p.cbor", lambda: bytes.fromhex("a26161830102f93c006162820102")),
    _part("p.txt", lambda: "text ü".encode()), _part("p.txt.gz", lambda: gzip.compress(b"text" * 50)), _part("p.json.gz", lambda: gzip.compress(b"[1, 2, 3]")),
    _part("p.mp4", _video), _part("p.wav", lambda: b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0@\x1f\0\0\x80>\0\0\2\0\x10\0data\0\0\0\0" + bytes(200)),
)  # fmt: skip


def decode(folder: Path, rng: random.Random) -> None:
    """Every part of the folder, by every kind of decoder."""
    for path in folder.iterdir():
        kind = rng.choice(({}, {"av": "numpy"}, {"image": "torchrgb", "tensors": "torch"}, {"guess_content": True}))
        value = Decoder(**kind)(path.name, path.read_bytes())  # type: ignore[arg-type]
        if path.suffix == ".mp4" and hasattr(value, "get_video_clips"):
            value.get_metadata()
            value.get_video_clips([(0, 1)])


def _tokens(write: Callable[[Any], Any]) -> Build:
    def build(folder: Path) -> None:
        with write(LocalStore(folder)) as out:
            out.add(np.repeat(np.arange(6), 3), np.full(6, 3))

    return build


pbin = _tokens(lambda store: write_pbin(store, "0.pbin", 2))
ds = _tokens(lambda store: write_ds(store, "0.ds", 2, tokenizer_name="t"))
megatron = _tokens(lambda store: write_megatron(store, "all", "u2"))
dolma_tokens = _tokens(lambda store: write_dolma(store, "0.npy", "u2"))


def pbin_legacy(folder: Path) -> None:
    shutil.copy(GOLDEN / "modalities" / "legacy_v1.pbin", folder / "0.pbin")


def _lines(path: Path, count: int = 6) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    words = "The quick brown fox jumps over the lazy dog. "
    rows = [
        {"id": f"d{n}", "text": words * (n % 4) + "\n" + words, "source": "s", "metadata": {"n": n}}
        for n in range(count)
    ]
    rows[1]["text"] += "ha " * 99  # repetitions, so that what counts them is compiled before the inputs are timed
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    pack = {".gz": gzip.compress, ".zst": zstd.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(data))


def documents_gz(folder: Path) -> None:
    _lines(folder / "documents" / "x.jsonl.gz")


def documents_zst(folder: Path) -> None:
    _lines(folder / "documents" / "x.jsonl.zst")


def documents_plain(folder: Path) -> None:
    _lines(folder / "documents" / "x.jsonl")


def warc_gz(folder: Path) -> None:
    archive(folder / "a.warc.gz", pages(4))


def warc_plain(folder: Path) -> None:
    archive(folder / "a.warc", pages(4))


def _mix(folder: Path) -> dict[str, Any]:
    _lines(folder / "documents" / "x.jsonl")
    (folder / "attributes" / "q").mkdir(parents=True)
    rows = [{"id": f"d{n}", "attributes": {"good": [[0, 5, n / 6]], "mail": [[1, 3, 1.0]]}} for n in range(6)]
    (folder / "attributes" / "q" / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "streams": [{
            "name": "s", "documents": ["documents/*"], "attributes": ["q"],
            "output": {"path": "out", "max_size_in_bytes": 100000, "discard_fields": ["metadata"]},
            "filter": {"include": ["$.attributes[?(@.good[0][2] >= 0.2)]"], "exclude": []},
            "span_replacement": [{"span": "$.attributes.mail", "min_score": 0.5, "replacement": "~"}],
        }],
        "processes": 1,
    }  # fmt: skip


def mix_json(folder: Path) -> None:
    tree = _mix(folder)
    (folder / "mix.json").write_text(json.dumps(tree))
    (folder / "mix.yaml").write_text(yaml.dump(tree))


def mix_yaml(folder: Path) -> None:
    tree = _mix(folder)
    stream = tree["streams"][0]
    stream["filter"] = {
        "syntax": "jq",
        "include": [".attributes.good[0][2] >= 0.2"],
        "exclude": ["(.text | length) > 300"],
    }
    (folder / "mix.yaml").write_text(yaml.dump(tree))
    (folder / "mix.json").write_text(json.dumps(tree))


def dolma_configs(folder: Path) -> None:
    _lines(folder / "documents" / "x.jsonl")
    bloom = {"file": "b.bin", "read_only": False, "size_in_bytes": 16384, "estimated_doc_count": 4500, "desired_false_positive_rate": 1e-06}  # fmt: skip
    tree = {"documents": ["documents/x.jsonl"], "dedupe": {"name": "d", "paragraphs": {"attribute_name": "p"}}, "bloom_filter": bloom, "processes": 1}  # fmt: skip
    (folder / "dedupe.json").write_text(json.dumps(tree))
    tag = {"documents": ["documents/x.jsonl"], "experiment": "e", "taggers": ["char_length_v1"], "processes": 1}
    (folder / "tag.yaml").write_text(yaml.dump(tag))
    tokens = {"documents": ["documents/x.jsonl"], "destination": "tokens", "tokenizer": {"name_or_path": "tokenizer.json", "eos_token_id": 2}, "processes": 1}  # fmt: skip
    (folder / "tokens.yaml").write_text(yaml.dump(tokens))
    shutil.copy(GOLDEN / "dolma" / "tokenizer" / "tokenizer.json", folder)


def bloom(folder: Path) -> None:
    write_bloom(LocalStore(folder), "a.bin", new_bloom(size=64, items=9, seed=0))
    _lines(folder / "documents" / "x.jsonl")


def read_filter(folder: Path, rng: random.Random) -> None:
    """A Bloom filter, alone."""
    assert read_bloom(LocalStore(folder), "a.bin").fill >= 0


def recipe(folder: Path) -> None:
    jsonl(folder)
    _lines(folder / "b.jsonl")
    tree = {
        "seed": 7, "samples": 50, "shuffle": "block",
        "blend": [
            {"path": "lines.jsonl", "name": "a", "weight": 0.7, "subset": ["0%", "50%"]},
            {"path": "b.jsonl", "weight": 0.3, "shuffle": {"kind": "block", "block": 4, "window": 2}, "max_repeats": 40},
            {"recipe": "other.yaml", "weight": 1},
        ],
    }  # fmt: skip
    (folder / "r.yaml").write_text(yaml.dump(tree, sort_keys=False))
    (folder / "other.yaml").write_text("source: lines.jsonl\nshuffle: global\n")


def metadataset(folder: Path) -> None:
    for name in ("dsA", "dsB"):
        shutil.copytree(GOLDEN / "energon" / "metadatasets" / name, folder / name)
    for name, to in (("blend", "m"), ("v1", "v1")):
        shutil.copy(GOLDEN / "energon" / "metadatasets" / f"{name}.yaml", folder / f"{to}.yaml")


def peers_recipes(folder: Path) -> None:
    vla(folder)
    ds(folder)
    (folder / "n.yaml").write_text("data_stages:\n- name: general\n  start_training_step: 1\n  data:\n    seed: 1234\n    dataset:\n      dataset_folder: {'.': 0.8}\n")  # fmt: skip
    tree = {"data": {"type": "text", "dataset_manifest": ["manifest.jsonl"], "dataset_weighting": [1.0], "dataset_modality": ["text"], "allow_multiple_epochs": True}, "total_train_samples": 5120}  # fmt: skip
    (folder / "v.yaml").write_text(yaml.dump(tree))


def tokenizer(folder: Path) -> None:
    shutil.copy(GOLDEN / "dolma" / "tokenizer" / "tokenizer.json", folder)
    _lines(folder / "d.jsonl")


def modalities(folder: Path) -> None:
    tokenizer(folder)
    settings = {"src_path": "d.jsonl", "dst_path": "out.pbin", "num_cpus": 1, "eod_token": "<|eos|>", "jq_pattern": ".text", "processing_batch_size": 4, "raw_samples_queue_size": 10, "processed_samples_queue_size": 10}  # fmt: skip
    config = {"pretrained_model_name_or_path": ".", "truncation": False, "padding": False}
    tree = {"settings": settings, "tokenizer": {"component_key": "tokenizer", "variant_key": "pretrained_hf_tokenizer", "config": config}}  # fmt: skip
    (folder / "c.yaml").write_text(yaml.dump(tree))


def loader_state(folder: Path) -> None:
    recipe(folder)
    (folder / "r.yaml").write_text("seed: 7\nsamples: 40\nsource: lines.jsonl\n")
    loader = fm.Loader(fm.Recipe.load(str(folder / "r.yaml")).plan(), 2)
    for _ in islice(loader, 3):
        pass
    (folder / "state.json").write_text(json.dumps(loader.state_dict()))
    fm.Checkpoint(loader).save(str(folder / "checkpoint.json"))


def load_state(folder: Path, rng: random.Random) -> None:
    """Resume from the state."""
    loader = fm.Loader(
        fm.Recipe.load(str(folder / "r.yaml")).plan(), 2, stall=None
    )  # a thread for each would fill the memory
    with contextlib.suppress(FeedmillError):
        fm.Checkpoint(loader).load(str(folder / "checkpoint.json"))
        next(iter(loader), None)
    try:
        state = json.loads((folder / "state.json").read_bytes())
    except (ValueError, RecursionError):
        return
    allow = {name: rng.random() < 0.7 for name in ("allow_append", "allow_skip", "allow_change")}
    loader.load_state_dict(state, **allow)
    next(iter(loader), None)


def _killed(at: int, call: Callable[[], object]) -> None:
    """Run a call in another process that ends before the rename of this number, as a kill would end it."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        count, rename = 0, os.replace

        def replace(*arguments: Any, **options: Any) -> None:
            nonlocal count
            count += 1
            if count == at:
                os._exit(9)
            rename(*arguments, **options)

        os.replace = replace  # type: ignore[assignment]
        call()
    finally:
        os._exit(0)


def killed_append(folder: Path) -> None:
    from typer.testing import CliRunner

    from feedmill.cli.app import app

    (folder / "ds").mkdir()
    prepared(folder / "ds")
    (folder / "more.jsonl").write_text('{"__key__": "z1", "txt": "a"}\n{"__key__": "z2", "txt": "b"}\n')
    words = ["edit", "append", str(folder / "ds"), str(folder / "more.jsonl"), "--workers", "1"]
    _killed(3, lambda: CliRunner().invoke(app, words))


def killed_tokenize(folder: Path) -> None:
    from typer.testing import CliRunner

    from feedmill.cli.app import app

    tokenizer(folder)
    words = ["tokenize", str(folder / "d.jsonl"), "-o", str(folder / "out"), "-t", str(folder / "tokenizer.json"), "--eos", "<|eos|>", "--workers", "1"]  # fmt: skip
    _killed(2, lambda: CliRunner().invoke(app, words))


__all__ = [name for name in globals() if not name.startswith("_")] + ["write_tar"]
