"""Energon itself loads what Feedmill prepared: the same keys, sources and fields as `feedmill.open` gives.

Needs an interpreter with Energon, named by ``FEEDMILL_ENERGON_PYTHON``. It is started once for all datasets, since
importing it takes seconds.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import feedmill
from feedmill.cli.app import app
from feedmill.formats.energon.prepared import read_info
from feedmill.formats.energon.sidecar import read_splits
from feedmill.samples.media import MediaFilter, probe
from helpers.digests import GOLDEN, digest
from helpers.tars import write_tar

PEER = "FEEDMILL_ENERGON_PYTHON"
TESTS = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not os.environ.get(PEER), reason=f"{PEER} names no Python with megatron-energon 7.4"),
]
torch = pytest.importorskip("torch")

CAPTIONS = ("--sample-type", "CaptioningSample", "--field-map", '{"image": "png,jpg", "caption": "json[text],txt"}')
CRUDE = ("--sample-type", "CrudeWebdataset")


@dataclass
class Case:
    """One prepared dataset.

    Attributes:
        make: writes and prepares it at a path, and returns the path to open.
        loads: arguments of `get_val_dataset`, one for each way to load it.
        raw: whether parts stay bytes.
        media: whether the index has media metadata.
        by_name: whether parts are read by name too.
    """

    make: Callable[[Path], Path]
    loads: Sequence[dict[str, Any]]
    raw: bool = False
    media: bool = False
    by_name: bool = True


def command(*arguments: object) -> None:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output


def picture(number: int, kind: str, mode: str = "RGB") -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (17 + number % 5, 23, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, kind)
    return out.getvalue()


def captioned(root: Path, shards: range, each: int = 4) -> Path:
    """Shards of pictures (JPEG in colour and grey, PNG with and without alpha) with captions in JSON or text."""
    for shard in shards:
        files = []
        for i in range(each):
            number = shard * each + i
            key = f"part{shard % 2}/s{number:04d}"
            kind, part, mode = [("JPEG", "jpg", "RGB"), ("PNG", "png", "RGBA"), ("JPEG", "jpg", "L")][number % 3]
            files.append((f"{key}.{part}", picture(number, kind, mode)))
            text = f"caption {number} — naïve 日本"
            caption = ("txt", text.encode()) if number % 2 else ("json", json.dumps({"text": text}).encode())
            files.append((f"{key}.{caption[0]}", caption[1]))
        write_tar(root / "shards" / f"shard_{shard:03d}.tar", files)
    return root


def ratio(*verb: str) -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        command(*verb, captioned(root, range(6)), "--non-interactive", "--split-ratio", "4,1,1", *CAPTIONS)
        return root

    return make


def patterns(root: Path) -> Path:
    captioned(root, range(5))
    splits = ("--split-parts", r"train:shards/shard_00[0-2]\.tar", "--split-parts", r"held out:shards/shard_00[34].*")
    command("prepare", root, "--non-interactive", *splits, "--sample-type", "ImageSample", "--field-map",
            '{"image": "jpg,png"}')  # fmt: skip
    return root


def excluding(root: Path) -> Path:
    """A shard that is never indexed, and a shard and two samples that the split file leaves out."""
    captioned(root, range(5))
    command("prepare", root, "--non-interactive", "--split-ratio", "1,0,0", "--exclude", "shard_001", *CRUDE)
    split = root / ".nv-meta" / "split.yaml"
    left_out = "[shards/shard_003.tar, 'shards/shard_000.tar/part0/s0001', 'shards/shard_004.tar/part0/s0019']"
    text = split.read_text()
    assert "exclude: []" in text
    split.write_text(text.replace("exclude: []", f"exclude: {left_out}"))
    return root


def odd_members(root: Path) -> Path:
    """PAX headers on every member, long and unicode names, folders, dotted and empty parts, GNU long names."""
    deep = "/".join(["a-rather-long-folder-name"] * 6)
    names = ["plain", "ünï/cödé-日本", f"{deep}/x", "with space/and (brackets)", "🙂"]
    for shard, form in enumerate((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)):
        files = [("__meta__/skipped.txt", b"not a part"), ("README", b"no dot")]
        for name in names:
            parts = [("txt", name.encode() * 40), ("detail.json", b'{"n": 1}'), ("empty.bin", b""), ("npy", npy(shard))]
            files += [(f"{name}-{shard}.{part}", data) for part, data in parts]
        write_tar(root / f"odd-{shard}.tar", files, form=form, mtime=1.5 if form == tarfile.PAX_FORMAT else 0)
    command("prepare", root, "--non-interactive", "--split-ratio", "1,0,0", *CRUDE)
    return root


def npy(number: int) -> bytes:
    out = io.BytesIO()
    np.save(out, np.arange(number, number + 5, dtype=np.float32))
    return out.getvalue()


def grown(root: Path) -> Path:
    """Prepared, given new shards (one of them sorts before the others), and prepared again."""
    captioned(root, range(1, 4))
    command("prepare", root, "--non-interactive", "--split-ratio", "2,1,0", *CAPTIONS)
    captioned(root, range(1))
    captioned(root, range(7, 9))
    command("prepare", root, "--non-interactive")
    return root


def with_media(root: Path) -> Path:
    pytest.importorskip("av")
    shutil.copytree(GOLDEN / "media_wds" / "ds" / "p", root / "p", ignore=shutil.ignore_patterns("*.idx"))
    captioned(root, range(2))
    options = ("--media-metadata", "--media-by-extension")
    command("prepare", root, "--non-interactive", "--split-ratio", "1,0,0", *options, *CRUDE)
    return root


def lines(root: Path) -> Path:
    root.mkdir(parents=True)
    path = root / "lines.v1.jsonl"
    rows = [json.dumps({"n": n, "text": "é日🙂" * (n % 7)}, ensure_ascii=n % 2 == 0) for n in range(20)]
    path.write_bytes("\n".join([*rows[:5], "", "  ", *rows[5:]]).encode())
    command("prepare", path)
    return path


def divided_lines(root: Path) -> Path:
    """Energon knows nothing of splits of JSONL files, and reads all."""
    path = lines(root)
    feedmill.prepare(str(path), split_ratio="8,1,1", progress=False)
    assert len(feedmill.open(path, split="val")) == 2
    return path


ALL = {"split_part": "train"}
SPLITS = [{"split_part": split} for split in ("train", "val", "test")]


def written(root: Path) -> Path:
    """Written, grown, made smaller, given another part and re-sharded by Feedmill."""
    from feedmill.writing.add_parts import add_parts
    from feedmill.writing.append import append
    from feedmill.writing.delete import delete
    from feedmill.writing.reshard import reshard

    def made(numbers: range) -> list[dict[str, Any]]:
        long = "/".join(["a-rather-long-folder-name"] * 6)
        return [
            {"__key__": f"{long if i % 5 == 0 else 'ünï'}/s{i:04d}", "json": {"text": f"日本 {i}"}, "npy": np.arange(i)}
            for i in numbers
        ]

    first, more, extra = root / "first", root / "more", root / "extra"
    feedmill.write(str(first), made(range(30)), max_shard_samples=7, sample_type="CrudeWebdataset")
    feedmill.write(str(more), made(range(30, 40)))
    append(str(first), [str(more)], max_shard_samples=6, workers=1)
    delete(str(first), [made(range(i, i + 1))[0]["__key__"] for i in (0, 3, 14, 15, 16, 17, 18, 19, 20)], workers=1)
    feedmill.write(str(extra), [{"__key__": row["__key__"], "txt": "more"} for row in made(range(40))])
    add_parts(str(first), str(extra), workers=1)
    reshard(str(first), str(root / "last"), max_shard_samples=9, shuffle=1, workers=1)
    return root / "last"


CASES = {
    "ratio": Case(ratio("prepare"), SPLITS),
    "ratio, drop-in": Case(ratio("compat", "energon", "prepare"), SPLITS),
    "patterns": Case(patterns, [ALL, {"split_part": "held out"}]),
    "excluding": Case(excluding, [ALL]),
    "excluding, raw": Case(excluding, [ALL], raw=True),
    "odd members": Case(odd_members, [ALL], raw=True),
    "odd members, decoded": Case(odd_members, [ALL]),
    "grown": Case(grown, SPLITS[:2]),
    "media": Case(with_media, [ALL], raw=True, media=True),
    "written": Case(written, [ALL], raw=True),
    "lines": Case(lines, [{}], by_name=False),
    "divided lines": Case(divided_lines, [{}], by_name=False),
}


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    """What Energon gives for each case: (request, answer) pairs."""
    folder = tmp_path_factory.mktemp("interop")
    requests: list[tuple[str, dict[str, Any]]] = []
    for number, (name, case) in enumerate(CASES.items()):
        path = case.make(folder / str(number))
        for arguments in case.loads:
            requests.append((name, {"path": str(path), "load": {"raw": case.raw, **arguments}}))
        if case.by_name:
            requests.append((name, {"path": str(path), "files": part_names(path), "media": case.media}))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONPATH": str(TESTS)}
    done = subprocess.run(
        [os.environ[PEER], str(Path(__file__).with_name("energon_reader.py"))],
        input=json.dumps([request for _, request in requests]),
        capture_output=True, text=True, env=env, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    given = json.loads(done.stdout.splitlines()[-1])
    found: dict[str, list[tuple[dict[str, Any], Any]]] = {name: [] for name in CASES}
    for (name, request), answer in zip(requests, given, strict=True):
        found[name].append((request, answer))
    return found


def part_names(root: Path) -> list[str]:
    """Every part of every indexed shard that the split file does not leave out, by full name."""
    store = feedmill.open_store(str(root))
    splits = read_splits(store)
    found = []
    for shard in read_info(store).keys() - (splits.shards_out if splits else set()):
        with tarfile.open(root / shard) as tar:
            members = [m.name for m in tar if m.isfile() and "." in m.name and not m.name.startswith("__")]
        found += members
    return found


def ours(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The same request, answered by Feedmill."""
    arguments = dict(request["load"])
    decode = None if arguments.pop("raw") else feedmill.samples.Decoder(image="torchrgb")
    dataset = feedmill.open(request["path"], split=arguments.pop("split_part", None), decode=decode, **arguments)
    return [described(sample) for sample in dataset]


def described(sample: Any) -> dict[str, Any]:
    if isinstance(sample, feedmill.Sample):
        key, source, subflavors, fields = sample.key, sample.source, sample.subflavors, dict(sample)
    else:
        (source,) = sample.__sources__
        names = [item.name for item in dataclasses.fields(sample) if not item.name.startswith("__")]
        key, subflavors = sample.__key__, sample.__subflavors__
        fields = {name: getattr(sample, name) for name in names}
    return {
        "key": key,
        "source": [source.file, source.index, list(source.names)],
        "subflavors": dict(subflavors) if subflavors else None,
        "fields": {name: digest(as_loaded(value)) for name, value in fields.items()},
    }


def as_loaded(value: Any) -> Any:
    """Energon's loader is torch's, which makes tensors of arrays."""
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("name", CASES)
def test_energon_gives_the_same_samples(name: str, answers: dict[str, list[tuple[dict[str, Any], Any]]]) -> None:
    loaded = [(request, answer) for request, answer in answers[name] if "load" in request]
    assert len(loaded) == len(CASES[name].loads)
    for request, answer in loaded:
        assert answer, "the split is empty: nothing was compared"
        assert json.loads(json.dumps(ours(request))) == answer


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.by_name])
def test_energon_gives_the_same_parts_by_name(name: str, answers: dict[str, list[tuple[dict[str, Any], Any]]]) -> None:
    ((request, answer),) = ((request, answer) for request, answer in answers[name] if "files" in request)
    dataset = feedmill.open(request["path"], raw=True)
    chosen = MediaFilter.parse(extension=True)
    assert request["files"]
    with_metadata = 0
    for file in request["files"]:
        data = dataset.get(file)
        assert digest(data) == answer[file]["data"], file
        if request["media"]:
            kind = chosen.kind(file, data)
            wanted = None if kind is None else probe(file, data, kind)
            given = answer[file]["media"]
            assert (wanted is None) == (given is None), file
            if wanted is not None:
                with_metadata += 1
                assert given[0] == {"image": "ImageMetadata", "av": "AVMetadata"}[wanted[0]]
                assert {k: v for k, v in given[1].items() if v is not None} == {
                    k: v for k, v in wanted[1].items() if v is not None
                }
    assert bool(with_metadata) == request["media"]
