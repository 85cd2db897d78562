"""Dolma's Python modules: a class for every tagger, files processed in parallel, paths, and calls of commands."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import pickle
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feedmill.compat.dolma.core.errors import DolmaError, DolmaRetryableFailure
from feedmill.compat.dolma.taggers.length import CharLengthV1
from feedmill.compat.dolma.taggers.sampling import RandomNumberTagger

from feedmill.compat.dolma import Document, deduper, mixer
from feedmill.compat.dolma.cli import MISSING, field, make_parser, namespace_to_nested_omegaconf
from feedmill.compat.dolma.core import binning, paths
from feedmill.compat.dolma.core.parallel import BaseParallelProcessor, QueueType
from feedmill.compat.dolma.core.runtime import create_and_run_tagger
from feedmill.compat.dolma.modules import CLASSES, TABLE
from feedmill.compat.dolma.tokenizer.reshard import ReshardingConfig
from feedmill.curation import registry
from feedmill.curation.plugins import BuiltInTagger, TaggerRegistry
from feedmill.curation.registry import importable
from feedmill.formats.tokens.dolma import write_dolma
from feedmill.storage import LocalStore


class Upper(BaseParallelProcessor):
    tries = 0

    @classmethod
    def increment_progressbar(cls, queue: QueueType, /, files: int = 0, lines: int = 0) -> dict[str, int]:
        return super().increment_progressbar(queue, files=files, lines=lines)

    @classmethod
    def process_single(cls, source_path: str, destination_path: str, queue: QueueType, **kwargs: Any) -> None:
        if kwargs.get("fail"):
            raise DolmaRetryableFailure("the network is away")
        text = Path(source_path).read_text()
        Path(destination_path).write_text(text.upper() + kwargs.get("end", ""))
        cls.increment_progressbar(queue, files=1, lines=text.count("\n"))


def test_dolma_is_this_package_while_modules_are_loaded() -> None:
    with importable():
        import dolma.core.registry
        from dolma import add_tagger
        from dolma.taggers.length import CharLengthV1 as Same

        assert (Same is CharLengthV1 and add_tagger is dolma.core.registry.TaggerRegistry.add.__func__) or add_tagger
        with pytest.raises(ModuleNotFoundError):
            import dolma.nothing
    assert "dolma" not in sys.modules


def test_every_tagger_of_the_modules_is_known() -> None:
    def below(cls: type[BuiltInTagger]) -> list[type[BuiltInTagger]]:
        return [sub for one in cls.__subclasses__() for sub in (one, *below(one))]

    for module, made in CLASSES.items():
        found = importlib.import_module(f"feedmill.compat.dolma.{module}")
        assert {name: getattr(found, name).name for name in made} == made
    names = {
        cls.name for cls in below(BuiltInTagger) if cls.__module__.startswith("feedmill.compat") and "name" in vars(cls)
    }
    assert len(names) >= 90 and names - set(registry.known()) == {"pii_presidio_v1"}
    assert RandomNumberTagger().predict(Document("s", "i", "text")).spans[0].type == "random"


@pytest.mark.parametrize("module", TABLE)
def test_modules_of_the_table_have_their_names(module: str) -> None:
    full = f"feedmill.compat.dolma.{module}"
    found = importlib.import_module(full)
    assert importlib.util.find_spec(full) is found.__spec__
    assert all(getattr(found, name) is not None for name in TABLE[module]) and set(TABLE[module]) == set(found.__all__)
    with pytest.raises(AttributeError, match=f"'{full}' has no attribute 'nonsense'"):
        found.nonsense  # noqa: B018


def test_a_module_of_the_table_is_an_attribute_and_its_classes_can_be_derived_from_and_sent() -> None:
    import feedmill.compat.dolma.core.registry
    import feedmill.compat.dolma.taggers.length

    assert feedmill.compat.dolma.core.registry.TaggerRegistry is TaggerRegistry
    assert pickle.loads(pickle.dumps(feedmill.compat.dolma.taggers.length.CharLengthV1)) is CharLengthV1

    class Longer(CharLengthV1):
        def predict(self, doc: Document) -> Any:
            return super().predict(Document(doc.source, doc.id, doc.text + "!"))

    assert Longer().predict(Document("s", "i", "text")).spans[0].score == 5


def test_files_are_processed_once(tmp_path: Path) -> None:
    for k in range(3):
        (tmp_path / "in" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / "ab"[k % 2] / f"{k}.txt").write_text(f"text {k}\n")
    where = (f"{tmp_path}/in/*/*", f"{tmp_path}/out", f"{tmp_path}/done")
    Upper(*where, num_processes=2)(end="!")
    assert {path.name: path.read_text() for path in (tmp_path / "out").rglob("*.txt")} == {
        f"{k}.txt": f"TEXT {k}\n!" for k in range(3)
    }
    Upper(*where, debug=True)(end="?")  # all are done
    assert (tmp_path / "out/a/0.txt").read_text() == "TEXT 0\n!"
    Upper(*where, debug=True, ignore_existing=True, include_paths=["a/0.txt"])(end="?")
    assert [(tmp_path / f"out/a/{k}.txt").read_text()[-1] for k in (0, 2)] == ["?", "!"]
    with pytest.raises(DolmaError, match="network"):
        Upper(*where, debug=True, ignore_existing=True, retries_on_error=2)(fail=True)
    both = Upper(*where) + Upper(*where)
    assert len(both.src_prefixes) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [(([], [], []), "at least one"), ((["a"], ["b", "c"], ["d"]), "as many"), (("a", "b*", "c"), "wild")],
)
def test_invalid_processors(given: tuple[Any, Any, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Upper(*given)


def test_parts_of_paths() -> None:
    assert paths.join_path("s3", ("path/to", "dir/")) == "s3://path/to/dir"
    assert paths.split_ext("/a/b.tar.gz") == ("", ("/", "a", "b"), ".tar.gz")
    assert paths.make_relative(["s3://a/b/c*", "s3://a/b/d/e"]) == ("s3://a/b", ["c*", "d/e"])
    assert paths.make_relative(["s3://a/x", "s3://b/x"]) == ("s3://", ["a/x", "b/x"])
    assert paths.sub_prefix("/a/b/c", "/a") == "b/c" and paths.sub_prefix("/a", "/a/b") == "/a"
    assert paths.sub_suffix("/a/b/c", "b/c") == "/a" and paths.parent("/a/b") == "/a"
    assert paths.split_glob("/a/?/c") == ("/a", "?/c") and paths.split_glob("*") == ("", "*")


def test_files_of_patterns(tmp_path: Path) -> None:
    for name in ("a/1.gz", "a/.hidden", "b/2.gz"):
        paths.mkdir_p(os.path.dirname(tmp_path / name))
        (tmp_path / name).write_text("x")
    found = [os.path.relpath(path, tmp_path) for path in paths.glob_path(tmp_path / "**/*.gz")]
    assert sorted(found) == ["a/1.gz", "b/2.gz"]
    assert list(paths.glob_path(f"{tmp_path}/a")) == [f"{tmp_path}/a/1.gz"]
    assert paths.is_dir(f"{tmp_path}/a") and paths.is_file(f"{tmp_path}/a/1.gz") and not paths.is_file(f"{tmp_path}/a")


def test_histograms() -> None:
    numbers = np.arange(1, 10)
    counts, edges = binning.equal_count_hist(numbers, 3, weights=[1, 1000, 1, 1, 1, 1000, 1, 1, 1])
    assert counts.tolist() == [1001, 1003, 3] and edges.tolist() == [1.0, 2.5, 6.5, 9.0]
    assert binning.cumsum_with_reset([1, 2, 0, 4, 5]).tolist() == [1, 3, 0, 4, 9]
    tracker = binning.FixedBucketsValTracker()
    tracker.add([1.0, 2.0], [2, 1])
    tracker.add(4.0)
    assert tracker.summarize(10)[0] == [2, 1, 1] and tracker.total == 4 and tracker.sum == 8 and len(tracker) == 3
    merged = binning.merge_bins(np.array([1.0, 2.0]), np.array([1, 1]), np.array([2.0, 3.0]), np.array([5, 1]))
    assert [column.tolist() for column in merged] == [[1.0, 2.0, 3.0], [1, 6, 1]]


def test_calls_of_the_commands(tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    lines = [
        json.dumps({"id": str(k), "text": text, "source": "s"}) for k, text in enumerate(["same", "same", "other"])
    ]
    (tmp_path / "documents/0.jsonl").write_text("\n".join(lines) + "\n")
    documents = [f"{tmp_path}/doc*/*.jsonl"]
    create_and_run_tagger(documents, ["char_length_v1"], experiment="exp", destination=f"{tmp_path}/made", debug=True)
    assert list((tmp_path / "made/exp").rglob("0.jsonl"))
    bloom = {
        "file": f"{tmp_path}/b",
        "read_only": False,
        "estimated_doc_count": 9,
        "desired_false_positive_rate": 0.001,
    }
    deduper(
        {
            "documents": documents,
            "dedupe": {"name": "dup", "documents": {"key": "$.text", "attribute_name": "dup"}},
            "bloom_filter": bloom,
        }
    )
    stream = {
        "name": "s",
        "documents": documents,
        "attributes": ["dup"],
        "filter": {"include": [], "exclude": ["$.attributes[?(@.dup && @.dup[0])]"]},
        "output": {"path": f"{tmp_path}/out"},
    }
    mixer({"streams": [stream]})
    (out,) = (tmp_path / "out").glob("*.gz")
    from feedmill.formats.documents import read_rows

    rows = [json.loads(row)["id"] for block in read_rows(LocalStore(out.parent), out.name) for row in block]
    assert rows == ["0", "2"]


def test_reshard_as_a_program(tmp_path: Path) -> None:
    for k in range(3):
        (tmp_path / "in").mkdir(exist_ok=True)
        with write_dolma(LocalStore(tmp_path / "in"), f"{k}.npy", "<u2") as writer:
            writer.add(np.arange(5, dtype="<u2"), np.array([2, 3]), origins=[(f"{k}a", "f", 1), (f"{k}b", "f", 2)])
    config = tmp_path / "c.yaml"
    config.write_text(
        f"source_prefixes:\n- prefix: {tmp_path}/in/\n  sample_rate: 2\ndestination_prefix: {tmp_path}/out\n"
        f"max_num_files: 2\nlocal_tempdir: {tmp_path}/scratch\n"
    )
    command = [sys.executable, "-m", "feedmill.compat.dolma.tokenizer.reshard"]
    done = subprocess.run([*command, str(config)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "2 files" in done.stdout, done.stderr
    assert sorted(os.listdir(tmp_path / "out"))[:2] == ["000000.csv.gz", "000000.npy"]
    again = subprocess.run([*command, str(config)], capture_output=True, text=True, timeout=120)
    assert again.returncode and "exists" in again.stderr and "Traceback" not in again.stderr
    assert ReshardingConfig.from_file(str(config)).to_dict()["source_prefixes"][0]["sample_rate"] == 2
    with pytest.raises(ValueError, match="exactly one"):
        ReshardingConfig.from_dict({"source_prefixes": [], "destination_prefix": "x"})


@dataclasses.dataclass
class Inner:
    """Options of a program that was written with Dolma."""

    a: int = field(help="a number")
    names: list[str] = field(default=[], help="names", nargs="*")  # noqa: RUF009


@dataclasses.dataclass
class Outer:
    """Options with others in them."""

    inner: Inner = field(help="nested", default=Inner())  # noqa: RUF009
    on: bool = field(default=False)
    c: float = field(default=1.0)


def test_fields_of_options() -> None:
    assert Inner().a == MISSING and Inner().names is not Inner().names and Outer().inner is not Outer().inner
    assert dataclasses.fields(Inner)[0].metadata == {"help": "a number"}
    args = make_parser(ArgumentParser(), Outer).parse_args(["--inner.a", "3", "--inner.names", "x", "y", "--no-on"])
    assert vars(args) == {"inner.a": "3", "inner.names": ["x", "y"], "on": False, "c": MISSING}
    pytest.importorskip("omegaconf")
    found = namespace_to_nested_omegaconf(args, Outer, {"c": 2, "on": True})
    assert (found.inner.a, list(found.inner.names), found.on, found.c) == (3, ["x", "y"], False, 2.0)
