"""Names of torch and Hugging Face datasets: each answers with what to use here, and is still an AttributeError."""

from __future__ import annotations

import copy
import pickle
import re
import traceback
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import Hinted
from feedmill.formats import base
from feedmill.loading import loader
from feedmill.samples.types import brief
from helpers.torch_workers import raises


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "qa.jsonl"
    path.write_text("".join(f'{{"text": "line {number}"}}\n' for number in range(20)))
    return path


@pytest.mark.parametrize("name", ["load_dataset", "DataLoader", "interleave", "blend", "pack", "DistributedSampler"])
def test_names_that_people_look_for_in_the_package(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}'. Use .*fm\."):
        getattr(fm, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        _ = fm.nothing


@pytest.mark.parametrize(
    "name",
    ["take", "head", "shuffle", "column_names", "features", "train_test_split", "with_format", "num_rows", "batch"],
)
def test_names_that_people_look_for_in_a_dataset(name: str, lines: Path) -> None:
    dataset = fm.open(lines)
    assert not hasattr(dataset, name)
    with pytest.raises(AttributeError, match=f"a JsonlDataset has no attribute '{name}'. ") as caught:
        getattr(dataset, name)
    assert caught.value.name == name


def test_a_loader_has_rank_and_world_size_and_no_set_epoch(lines: Path) -> None:
    loader = fm.Loader(lines, 4, rank=1, world_size=3)
    assert (loader.rank, loader.world_size) == (1, 3)
    assert not hasattr(loader, "set_epoch"), "trainers call it where it exists"
    with pytest.raises(AttributeError, match="Each epoch of a plan has an order of its own"):
        _ = loader.set_epoch
    for indexed in (loader, fm.Plan.over(lines)):
        with pytest.raises(TypeError, match=r"is not indexed.*plan\.read\(\[position\]\)"):
            _ = indexed[0]
    assert copy.copy(loader).position == pickle.loads(pickle.dumps(loader)).position == 0


def test_next_of_a_loader_continues_the_running_iteration(lines: Path) -> None:
    loader, other = (fm.Loader(lines, 4, rank=0, world_size=1, epochs=1) for _ in range(2))
    keys = [batch["__key__"] for batch in other]
    assert [next(loader)["__key__"], next(loader)["__key__"]] == keys[:2] and loader.position == 8
    for batch in loader:
        assert batch["__key__"] == keys[2] and next(loader)["__key__"] == keys[3]
        break
    copied = pickle.loads(pickle.dumps(loader))
    assert next(loader)["__key__"] == next(copied)["__key__"] == keys[4]
    for ended in (loader, copied, other):
        with pytest.raises(StopIteration):
            next(ended)
    loader.load_state_dict(fm.Loader(lines, 4, rank=0, world_size=1, epochs=1).state_dict())
    assert next(loader)["__key__"] == keys[0]


def test_a_hint_names_only_what_exists(lines: Path) -> None:
    dataset = fm.open(lines)
    for hint in [*fm._HINTS.values(), *base.HINTS.values(), *loader.HINTS.values()]:
        for name in re.findall(r"fm\.(\w+(?:\.\w+)*)", hint):
            assert resolve_name(f"feedmill:{name}"), hint
        for name in re.findall(r"dataset\.(\w+)", hint):
            assert hasattr(dataset, name), hint
        for name in re.findall(r"loader\.(\w+)", hint):
            assert hasattr(fm.Loader, name) or name in ("plan", "layout", "workers"), hint
    assert not [name for name in base.HINTS if hasattr(dataset, name)]
    assert not [name for name in loader.HINTS if hasattr(fm.Loader(lines, 4), name)]
    assert not set(fm._HINTS) & set(fm.__all__)


def test_an_error_inside_a_property_is_not_hidden_by_the_hints() -> None:
    class Broken(Hinted):
        hints: ClassVar[dict[str, str]] = {"shown": "Use other."}

        @property
        def value(self) -> int:
            return self.inner  # type: ignore[attr-defined,no-any-return]

    with pytest.raises(AttributeError, match="'inner'"):
        _ = Broken().value
    with pytest.raises(AttributeError, match=r"a Broken has no attribute 'shown'. Use other."):
        _ = Broken().shown  # type: ignore[attr-defined]


def test_errors_show_the_frames_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, nothing = tmp_path / "r.yaml", tmp_path / "nothing"
    recipe.write_text("source: nothing\n")
    calls = [
        lambda: fm.open(nothing),
        lambda: fm.Loader(recipe, 4, rank=0, world_size=1),
        lambda: fm.check(nothing),
        lambda: fm.tag(nothing, ["gopher_v2"]),
    ]
    lengths = []
    for debug in ("", "1"):
        monkeypatch.setenv("FEEDMILL_DEBUG", debug)
        for call in calls:
            with pytest.raises(fm.FeedmillError) as caught:
                call()
            lengths.append(len(traceback.extract_tb(caught.value.__traceback__)))
    assert max(lengths[: len(calls)]) <= 3 < min(lengths[len(calls) :])


class Typed(fm.samples.CaptioningSample):
    """A user's own type."""


def typed(**fields: Any) -> fm.samples.CaptioningSample:
    return fm.samples.CaptioningSample(__key__="000", __restore_key__=("Webdataset", 1), **fields)


def test_a_sample_is_shown_in_one_line_without_its_pixels() -> None:
    sample = typed(image=np.zeros((480, 640, 3), np.uint8), caption="a cat " * 50)
    assert repr(sample).startswith("CaptioningSample('000', image=uint8[480, 640, 3], caption='a cat a cat ")
    assert len(repr(sample)) < 160 and "restore" not in repr(sample)
    assert repr(Typed.extend(sample, caption="a dog")).endswith("caption='a dog')")
    assert (
        brief({"a": [np.zeros(3), b"12", None, 5, "x", ["y"], 7]})
        == "{'a': [float64[3], 2 B, None, 5, 'x', ['y'], ...]}"
    )


def test_default_collate_names_what_makes_batches_of_samples(tmp_path: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    from PIL import Image

    for number in range(4):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
        (tmp_path / f"{number}.txt").write_text("a cat")
    fm.import_data(tmp_path, tmp_path / "out")
    dataset = fm.open(tmp_path / "out")
    assert type(dataset[0]) is fm.samples.CaptioningSample
    for workers in (0, 1):
        with raises(TypeError, r"no batch of a CaptioningSample: use .*to_torch\(\).*as_dataset\(\)"):
            next(iter(data.DataLoader(dataset, batch_size=2, num_workers=workers)))
    batch = next(iter(data.DataLoader(dataset, batch_size=2, collate_fn=list)))
    assert [sample.caption for sample in batch] == ["a cat"] * 2
    assert len(next(iter(data.DataLoader(dataset.to_torch(), batch_size=2)))["caption"]) == 2


GUESSES: list[tuple[str, str | None]] = [
    # open and look
    ("fm.load_dataset('cards')", r"Use fm.open\(path\)"),
    ("fm.read_parquet('cards')", "detects the format"),
    ("fm.open('cards', streaming=True)", "read in place"),
    ("fm.describe('cards')", r"fm.info\(path\)"),
    ("fm.visualize('cards')", r"fm.show\(path\)"),
    ("len(ds), ds[0], ds[-1].caption, ds[:3], ds[[0, 2]], ds[np.array([3])]", None),
    ("[sample.caption for sample in ds]", None),
    ("ds['train']", r"fm.open\(path, split='train'\)"),
    ("ds['caption']", r"dataset.to_arrow\(\['caption'\]\)"),
    ("ds[0]['caption']", "sample.image, sample.caption"),
    ("ds[0].text", "its fields are image, caption"),
    ("rows[0]['text']", r"sample\['json'\]\['text'\]"),
    ("fm.Dataset('cards')", r"Use fm.open\(path\)"),
    ("ds.head()", r"dataset\[:n\]"),
    ("ds.take(3)", r"dataset\[:n\]"),
    ("ds.shuffle(seed=1)", "fm.Plan.over"),
    ("ds.column_names", "to_arrow"),
    ("ds.features", "to_arrow"),
    ("ds.train_test_split(0.1)", r"dataset.select\(indices\)"),
    ("ds.with_format('torch')", "output='torch'"),
    ("ds.map(lambda sample: {'n': len(sample.caption)})[0]", None),
    ("len(rows.filter(lambda sample: sample['json']['n'] > 1))", None),
    ("ds.to_arrow(['caption']).num_rows", None),
    ("ds + ds", "fm.Plan.over"),
    ("ds.preview()", r"dataset.show\(\)"),
    ("ds.stats()", r"dataset.describe\(\)"),
    ("ds.train", "split=name"),
    ("fm.info(ds)", "pass 'cards'"),
    ("fm.preview(ds)", "pass 'cards'"),
    ("str(fm.info('cards')).index('\\n  \"samples\": 8')", None),
    ("fm.report([ds], 'report.html')", "pass 'cards'"),
    ("fm.preview('cards'), fm.report('cards', 'report.html')", None),
    # load
    ("next(iter(DataLoader(ds, batch_size=4)))", "to_torch"),
    ("next(iter(DataLoader(ds.to_torch(), batch_size=4)))", None),
    ("fm.DataLoader(ds, 4)", "fm.Loader"),
    ("next(iter(fm.Loader(ds, batch_size=4)))['caption']", None),
    ("next(iter(fm.Loader('cards', 4)))['image'].shape", None),
    ("next(fm.Loader(ds, 4))['caption']", None),
    ("fm.Loader(ds, 4, shuffle=True)", "the plan decides the order"),
    ("fm.Loader(ds, 4, num_workers=2)", "'workers'"),
    ("len(fm.Loader(ds, 4, epochs=1))", None),
    ("len(fm.Loader(ds, 4))", "epochs=1"),
    ("fm.Loader(ds, 4).set_epoch(1)", "order of its own"),
    ("fm.Loader(ds, 4).rank", None),
    ("next(iter(fm.Loader({'source': {'path': 'qa.jsonl'}, 'epochs': 1}, 4)))", None),
    ("fm.Loader({'cards': 0.7, 'qa.jsonl': 0.3}, 4)", "'blend'"),
    ("fm.Loader([ds, ds], 4)", "fm.Plan.over"),
    # mix
    ("fm.Recipe({'source': {'path': 'qa.jsonl'}})", "fm.Recipe.parse"),
    ("fm.Recipe.load({'source': {'path': 'qa.jsonl'}}).plan()", None),
    ("fm.Recipe.load({'datasets': [{'path': 'qa.jsonl', 'weight': 1}]})", "'blend'"),
    ("fm.Recipe.load({'source': {'path': 'qa.jsonl'}, 'pack': {'seq_len': 8, 'epochs': 1}})", "top of the recipe"),
    ("fm.Plan('qa.jsonl')", r"Use fm.Plan.over\(dataset\)"),
    ("fm.Plan(ds)", "not made of a TarDataset"),
    ("fm.interleave_datasets([ds, ds])", "fm.Plan.over"),
    ("fm.pack(ds, 1024)", "'pack' in a recipe"),
    # write
    ("fm.save(ds, 'out')", r"fm.write\(path, samples\)"),
    ("fm.write(ds, 'out')", "the path comes first"),
    ("fm.write('copy', ds)", None),
    ("ds.save_to_disk('out')", r"Use fm.write\(path, dataset\)"),
    ("fm.filter(ds, len)", r"dataset.filter\(function\)"),
    ("fm.filter({'stream': {'documents': ['x']}})", "'streams'"),
    ("fm.convert(ds, 'out', 'mds')", "pass 'cards'"),
    ("fm.tokenize('qa.jsonl')", r"tokenize\(inputs, output, tokenizer, ...\)"),
    ("fm.merge(['a.pbin'], 'b.pbin')", "fm.tokens.merge"),
]
"""What a notebook user tries first, and the words of the error; None where it works."""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    root = tmp_path_factory.mktemp("notebook")
    (root / "photos").mkdir()
    for number in range(8):
        Image.new("RGB", (8, 8)).save(root / f"photos/{number}.png")
        (root / f"photos/{number}.txt").write_text("a cat")
    fm.import_data(root / "photos", root / "cards", progress=False)
    (root / "qa.jsonl").write_text("".join(f'{{"text": "line {n}", "n": {n}}}\n' for n in range(8)))
    return root


@pytest.mark.parametrize(("guess", "words"), GUESSES)
def test_a_first_guess_in_a_notebook(
    guess: str, words: str | None, notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(notebook)
    names = {"fm": fm, "np": np, "ds": fm.open("cards"), "rows": fm.open("qa.jsonl")}
    if "DataLoader(ds" in guess and "fm." not in guess:
        names["DataLoader"] = pytest.importorskip("torch.utils.data").DataLoader
    if words is None:
        eval(guess, names)
        return
    with pytest.raises((AttributeError, TypeError, fm.FeedmillError), match=words) as caught:
        eval(guess, names)
    assert "self" not in str(caught.value)


def test_an_error_in_a_function_of_the_user_shows_the_frames_of_the_user(notebook: Path) -> None:
    dataset = fm.open(notebook / "cards")

    def broken(sample: Any) -> Any:
        return sample.captoin

    calls = [
        lambda: dataset.map(broken)[0],
        lambda: list(dataset.map(broken)),
        lambda: dataset.filter(broken, progress=False),
        lambda: dataset.to_torch(broken)[0],
        lambda: next(iter(fm.Loader(dataset, 4, rank=0, world_size=1, transform=broken))),
    ]
    for call in calls:
        with pytest.raises(fm.DataError, match="no attribute 'captoin': its fields are image, caption") as caught:
            call()
        shown = "".join(traceback.format_exception(caught.value))
        assert "return sample.captoin" in shown
        own = [line for line in shown.splitlines() if "/src/feedmill/" in line]
        assert len(own) <= 3 and len(shown.splitlines()) < 30, shown
