"""The data that writing verbs work on: small, with several files of each kind. Each maker fills a folder."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from helpers import foreign_datasets

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden"
TOKENIZER = GOLDEN / "modalities/tok256/tokenizer.json"
CHATS = json.loads((GOLDEN / "modalities/expected.json").read_text())["instruction_tuning"]["config"]


def both(*made: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Several makers, one after the other."""
    return partial(_each, made)


def _each(made: tuple[Callable[[Path], Any], ...], folder: Path) -> None:
    for one in made:
        one(folder)


def sample_set(folder: Path, name: str = "d", count: int = 12, first: int = 0, per_shard: int = 4) -> None:
    """A prepared dataset."""
    import feedmill as fm
    from helpers.written_datasets import samples

    kind = {"max_shard_samples": per_shard, "sample_type": "CrudeWebdataset", "progress": False}
    fm.write(str(folder / name), samples(count, first), **kind)


more = partial(sample_set, name="more", count=6, first=500, per_shard=3)
texts_set = partial(sample_set, name="source")


def text_samples(folder: Path, name: str = "source") -> None:
    """A prepared dataset whose parts are text."""
    from helpers.conversion_sources import sample_set as made

    made(folder / name, 10, binary=False, per_shard=4)


def extra(folder: Path) -> None:
    """Another part for the samples of `sample_set`."""
    import feedmill as fm

    fm.write(str(folder / "extra"), [{"__key__": f"s{i:05d}", "cls": i} for i in range(12)], progress=False)


def plain_tars(folder: Path, name: str = "d") -> None:
    """Tars that are not prepared."""
    sample_set(folder, name)
    shutil.rmtree(folder / name / ".nv-meta")
    for path in (folder / name).rglob("*.idx"):
        path.unlink()


def cut_tars(folder: Path) -> None:
    """A prepared dataset of which a shard has lost its end."""
    sample_set(folder)
    path = folder / "d/shards/000001.tar"
    path.write_bytes(path.read_bytes()[:-2600])


def pictures(folder: Path, name: str = "d") -> None:
    """A prepared dataset with images."""
    import feedmill as fm

    fm.write(str(folder / name), [{"__key__": f"i{n}", "png": picture(n)} for n in range(6)], max_shard_samples=2,
             sample_type="CrudeWebdataset", progress=False)  # fmt: skip


def picture_files(folder: Path) -> None:
    """A folder of images."""
    (folder / "media").mkdir()
    for n in range(4):
        (folder / f"media/{n}.png").write_bytes(picture(n))


def picture(number: int) -> bytes:
    """An image of its own size."""
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (number + 1, 2)).save(stream, "PNG")
    return stream.getvalue()


def json_lines(folder: Path, name: str = "x.jsonl", count: int = 30) -> None:
    """A JSONL file."""
    from helpers.conversion_sources import lines

    lines(folder / name, count)


def bad_lines(folder: Path) -> None:
    """A JSONL file of which some lines are none."""
    good = [json.dumps({"text": f"line {n}"}) for n in range(12)]
    (folder / "x.jsonl").write_text("\n".join([*good[:5], "{bad", *good[5:], '{"text": "cu']))


def texts(folder: Path) -> None:
    """Documents to be tokenized."""
    (folder / "texts").mkdir()
    for number in range(3):
        rows = [json.dumps({"id": f"{number}-{k}", "text": f"word {number} {k} " * (k + 1)}) for k in range(6)]
        (folder / f"texts/{number}.jsonl").write_text("\n".join(rows) + "\n")


def token_files(folder: Path, loss: bool = False) -> None:
    """Files of tokens."""
    from helpers.conversion_sources import tokens

    tokens(folder / "t", files=2, loss=loss)


def packed(folder: Path) -> None:
    """Packed files of tokens without their bounds, and a list of them."""
    for name in ("main_2b", "nested_2b"):
        shutil.copy(GOLDEN / f"modalities/{name}.pbin", folder)
    (folder / "list.txt").write_text("main_2b.pbin\nnested_2b.pbin\n")


def documents(folder: Path) -> None:
    """A tree of documents, with duplicates."""
    from helpers import document_folders as made

    made.write_documents(folder / "d", made.texts(9), made.texts(7, 1), made.texts(9))


def near_documents(folder: Path) -> None:
    """A tree of documents, with near-duplicates."""
    from helpers import near_copies

    made = near_copies.make_texts(14, 5, words=(12, 20))
    near_copies.write_documents(folder / "d", {"a.jsonl.gz": made[:8], "b.jsonl": made[8:]})


def tagged_tokens(folder: Path) -> None:
    """Token files of documents with attributes."""
    import feedmill as fm

    attributes(folder)
    fm.tokenize(
        [str(folder / "d/documents")],
        str(folder / "t/x"),
        tokenizer=TOKENIZER,
        formats=("ds",),
        on_error="skip",
        workers=1,
        progress=False,
    )


def attributes(folder: Path) -> None:
    """Documents with attributes and how to mix them."""
    from helpers.document_folders import texts as made
    from helpers.document_folders import write_lines

    documents(folder)
    for n, members in enumerate((made(9), made(7, 1), made(9))):
        found = [{"id": f"{n}-{m}", "attributes": {"number": [[0, len(t), float(m)]]}} for m, t in enumerate(members)]
        write_lines(folder / f"d/attributes/made/part-{n}.jsonl.gz", map(json.dumps, found))
    stream = {"name": "m", "documents": ["d/documents/*"], "attributes": ["made"]}
    stream |= {"output": {"path": "mixed", "max_size_in_bytes": 600}}
    stream |= {"filter": {"include": ["$.attributes[?(@.number[0][2] < 5)]"], "exclude": []}}
    (folder / "mix.yaml").write_text(yaml.dump({"streams": [stream], "processes": 1}))


def robotics(folder: Path) -> None:
    """VLA Foundry's data of a robot."""
    shutil.copytree(GOLDEN / "vla/robotics", folder / "r", ignore=shutil.ignore_patterns("expected.json"))


def robot(folder: Path) -> None:
    """A LeRobot dataset without videos."""
    foreign_datasets.lerobot_v3(folder / "robot", [6, 4])


def packing(folder: Path) -> None:
    """Modalities' configuration of packing."""
    texts(folder)
    shutil.copy(folder / "texts/0.jsonl", folder / "a.jsonl")
    options = {"pretrained_model_name_or_path": str(TOKENIZER.parent), "truncation": False, "padding": False}
    queues = {"processing_batch_size": 4, "raw_samples_queue_size": 10, "processed_samples_queue_size": 10}
    settings = {"src_path": "a.jsonl", "num_cpus": 1, "eod_token": "<|endoftext|>", "jq_pattern": ".text", **queues}
    tokenizer = {"component_key": "tokenizer", "variant_key": "pretrained_hf_tokenizer", "config": options}
    (folder / "c.yaml").write_text(yaml.dump({"settings": settings, "tokenizer": tokenizer}))


def chats(folder: Path) -> None:
    """Modalities' configuration of conversations."""
    packing(folder)
    pbin = yaml.safe_load((folder / "c.yaml").read_text())
    pbin["settings"] |= {"jq_pattern": ".chat", "index_path": None, "dst_path": None}
    (folder / "pbin.yaml").write_text(yaml.dump(pbin))
    shutil.copy(GOLDEN / "modalities/chat.jsonl", folder)
    config = json.loads(json.dumps(CHATS))
    config["settings"] |= {"src_path": "chat.jsonl", "dst_path": "out/chat.jsonl"}
    config["settings"]["pbin_creation_config_file_path"] = "pbin.yaml"
    (folder / "c.yaml").write_text(yaml.dump(config))


def rows(folder: Path) -> None:
    """A tree of rows of any kind."""
    from helpers.conversion_sources import tree

    tree(folder / "rows", 2)


def old_lines(folder: Path) -> None:
    """What a conversion replaces."""
    json_lines(folder, "out.jsonl", 4)


def old_pbin(folder: Path, name: str = "f.pbin") -> None:
    """What a token verb replaces."""
    (folder / name).parent.mkdir(exist_ok=True)
    shutil.copy(GOLDEN / "modalities/main_2b.pbin", folder / name)


old_tokens = partial(old_pbin, name="out/x.pbin")


def old_conversion(folder: Path) -> None:
    """What a conversion to a folder of shards replaces."""
    import feedmill as fm

    sample_set(folder, "before", 6, 300, 3)
    fm.convert(str(folder / "before"), str(folder / "out"), "wds", workers=1, progress=False, max_shard_samples=3)
