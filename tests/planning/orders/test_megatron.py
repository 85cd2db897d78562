"""Megatron-LM's orders, against what megatron-core itself gave (tests/compat/megatron_reader.py)."""

import hashlib
import json
import pickle
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.compat.megatron.fields import gpt_fields
from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.tokens.ordered import OrderedWindows
from feedmill.loading.loader import Loader
from feedmill.planning.nodes import Leaf
from feedmill.planning.orders import BlendedDataset, GptOrder, split_ranges
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from helpers.megatron_runs import PARTS, RUNS, recipe, write_sets

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "orders" / "megatron.json").read_text())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("megatron")
    write_sets(folder)
    return folder


def equal(index: np.ndarray, golden: dict[str, Any]) -> bool:
    digest = hashlib.sha256(np.ascontiguousarray(index, "<i8").tobytes()).hexdigest()
    return index.reshape(-1)[: len(golden["head"])].tolist() == golden["head"] and digest == golden["sha256"]


def starts(dataset: OrderedWindows) -> np.ndarray:
    """Return the documents and offsets at which windows begin, as they are in megatron-core's sample index."""
    pieces = dataset.pieces(np.arange(len(dataset)))
    _, first = np.unique(pieces.row, return_index=True)
    return np.stack([pieces.document[first], pieces.start[first]], axis=1)


@pytest.mark.parametrize(("name", "part"), list(product(RUNS, PARTS)), ids=" ".join)
def test_every_index_is_that_of_megatron_core(name: str, part: str, root: Path) -> None:
    golden = GOLDEN["runs"][name][PARTS.index(part)]
    plan = Recipe.parse(recipe(RUNS[name], part), base=root).plan()
    for dataset, theirs in zip(plan.sources, golden["datasets"], strict=True):
        assert isinstance(dataset, OrderedWindows) and isinstance(dataset.order, GptOrder)
        assert len(dataset) == theirs["samples"]
        assert equal(dataset.order.documents, theirs["document_index"])
        assert equal(dataset.order.shuffle, theirs["shuffle_index"])
        begin = np.array(theirs["sample_index"]["head"]).reshape(-1, 2)[: len(dataset)]
        ours = starts(dataset)[: len(begin)]
        documents, lengths = dataset.order.documents, dataset.tokens.lengths
        # Theirs may name the end of a document where a window begins with the next one.
        ended = (begin[:, 1] == lengths[documents[begin[:, 0]]]) & (begin[:, 1] > 0)
        assert documents[begin[:, 0]][~ended & (ours[:, 1] > 0)].tolist() == ours[~ended & (ours[:, 1] > 0), 0].tolist()
        assert begin[~ended, 1].tolist() == ours[~ended, 1].tolist()
    if "dataset_index" in golden:
        node = plan.node if isinstance(plan.node, BlendedDataset) else plan.node.children[0]
        assert isinstance(node, BlendedDataset)
        choice, _ = node._choose()
        assert equal(choice, golden["dataset_index"])
        located = plan.locate(np.arange(len(plan)))
        assert located.source.tolist() == choice[: len(plan)].tolist()
    back = [plan.positions(int(s), int(i)).tolist() for s, i, _ in rows(plan, 50)]
    assert back == [[position] for position in range(min(50, len(plan)))]


def rows(plan: Plan, count: int) -> list[tuple[int, int, int]]:
    located = plan.locate(np.arange(min(count, len(plan))))
    return list(zip(located.source.tolist(), located.index.tolist(), located.epoch.tolist(), strict=True))


@pytest.mark.parametrize(("name", "part"), list(product(RUNS, PARTS)), ids=" ".join)
def test_samples_have_the_same_tokens(name: str, part: str, root: Path) -> None:
    golden = GOLDEN["runs"][name][PARTS.index(part)]
    plan = Recipe.parse(recipe(RUNS[name], part), base=root).plan()
    extra = RUNS[name].get("options", {}).get("add_extra_token_to_sequence", True)
    taken = [k for k in (0, 1, 17) if k < len(plan)]
    samples = plan.read(taken)
    for sample, theirs in zip(samples, golden["take"], strict=False):
        fields = gpt_fields(sample["input_ids"][None], eod=0, extra_token=extra, create_attention_mask=False)
        assert {key: value[0].tolist() for key, value in fields.items()} == theirs


@pytest.mark.parametrize("case", GOLDEN["masks"], ids=lambda case: str([*case["options"].values(), case["pad"]]))
def test_masks_and_positions_are_those_of_megatron_core(case: dict, root: Path) -> None:
    run = {**RUNS["one epoch, a partial sample"], "seq_len": 20, "options": case["options"]}
    plan = Recipe.parse(recipe(run, "valid"), base=root).plan()
    assert len(plan) == case["valid"]["samples"]
    batch = plan.read([0, 3])
    options = {
        name: value
        for name, value in case["options"].items()
        if name not in ("drop_last_partial_validation_sequence", "add_extra_token_to_sequence")
    }
    fields = gpt_fields(
        np.stack([sample["input_ids"] for sample in batch]),
        eod=0,
        tokens=np.array([sample["tokens"] for sample in batch]),
        pad=case["pad"],
        extra_token=case["options"]["add_extra_token_to_sequence"],
        create_attention_mask=case["attention"],
        **options,
    )
    for row, theirs in enumerate(case["valid"]["take"]):
        assert {key: value[row].tolist() for key, value in fields.items()} == theirs


def test_the_incomplete_sample_is_padded(root: Path) -> None:
    plan = Recipe.parse(recipe(RUNS["one epoch, a partial sample"], "valid"), base=root).plan()
    order = plan.sources[0].order
    last = plan.read(plan.positions(0, order.windows - 1))[0]
    assert last["tokens"] == order.tokens - (order.windows - 1) * 33 < 34
    assert not last["input_ids"][last["tokens"] :].any() and len(last["input_ids"]) == 34


def test_a_run_moves_over_half_way(root: Path) -> None:
    """A loader at `consumed_train_samples` gives the global batches that Megatron-LM's sampler would give."""
    plan = Recipe.parse(recipe(RUNS["a blend by weight"], "train"), base=root).plan()
    whole = np.stack([sample["input_ids"] for sample in plan.read(np.arange(len(plan)))])
    seen = []
    for rank in range(2):
        loader = Loader(plan, 8, rank=rank, world_size=2, start=320, workers=0)
        seen.append(np.stack([next(batches)["input_ids"] for batches in [iter(loader)]]))
    assert np.array_equal(np.concatenate([each[0] for each in seen]), whole[320:336])


def test_windows_lead_to_documents_and_back(root: Path) -> None:
    plan = Recipe.parse(recipe(RUNS["a last epoch apart"], "train"), base=root).plan()
    (dataset,) = plan.sources
    assert isinstance(dataset, OrderedWindows)
    for window in (0, 5, len(dataset) - 1):
        for file, document in dataset.documents_of(window):
            assert window in dataset.windows_of(file, document)
    number = int(dataset.order.documents[np.flatnonzero(dataset.tokens.lengths[dataset.order.documents])[0]])
    assert len(dataset.windows_of(0, number)) >= dataset.order.epochs
    again = pickle.loads(pickle.dumps(plan))
    assert again.fingerprint == plan.fingerprint and rows(again, 20) == rows(plan, 20)


def test_positions_and_boundaries_follow_the_documents(root: Path) -> None:
    data = recipe(RUNS["a last epoch apart"], "train")
    data["order"] |= {"positions": True, "boundaries": True}
    plan = Recipe.parse(data, base=root).plan()
    dataset = plan.sources[0]
    for number, sample in enumerate(dataset.read(np.arange(40))):
        pieces = dataset.pieces([number])
        assert sample["boundaries"].tolist() == [*pieces.column.tolist(), 17]
        expected = np.concatenate([np.arange(length) for length in pieces.length.tolist()])
        assert sample["positions"].tolist() == expected.tolist()
        raw = np.frombuffer(sample.raw("input_ids"), "<u2")
        assert raw.tolist() == sample["input_ids"].tolist()


def test_the_tree_names_the_order(root: Path) -> None:
    text = str(Recipe.parse(recipe(RUNS["a blend by weight"], "train"), base=root).plan())
    assert "megatron blend 0.3 : 0.5 : 0.2" in text and "gpt shuffle seed 1234, " in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"split": "969;x"}, "not one to three numbers"),
        ({"split": "0,0,0"}, "not one to three numbers"),
        ({"split": "1,2,3,4"}, "not one to three numbers"),
        ({"split": "1,0,0", "part": "valid"}, "has no documents for 'valid'"),
        ({"seq_len": 10**6}, "not enough for one sample"),
        ({"ranks": 3}, "has no option 'ranks'"),
    ],
)
def test_impossible_orders_are_named(change: dict[str, Any], words: str, root: Path) -> None:
    data = recipe(RUNS["a last epoch apart"], "train")
    data["order"] |= change
    if "seq_len" in change:
        del data["samples"]
    with pytest.raises(ConfigError, match=words):
        Recipe.parse(data, base=root).plan()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epochs": 2, "samples": None}, "has no 'epochs'"),
        ({"source": {"path": "a_text_document.bin", "windows": 8}}, "without 'windows', 'subset' and 'where'"),
        ({"source": {"path": "missing.bin"}}, "there is no"),
        ({"seed": -1}, "cannot have the seed -1"),
    ],
)
def test_impossible_recipes_are_named(change: dict[str, Any], words: str, root: Path) -> None:
    data = {**recipe(RUNS["a last epoch apart"], "train"), **change}
    with pytest.raises(Exception, match=words):
        Recipe.parse({key: value for key, value in data.items() if value is not None}, base=root).plan()


def test_a_blend_that_draws_too_much_is_refused_as_in_megatron() -> None:
    with pytest.raises(ConfigError, match=r"draws 66 samples from dataset 1, which has 20"):
        BlendedDataset([Leaf(0, 100), Leaf(1, 20)], [1, 2], 100)
    with pytest.raises(ConfigError, match="weight of a Megatron-LM blend is zero"):
        BlendedDataset([Leaf(0, 100), Leaf(1, 20)], [1, 0], 100)


def test_splits() -> None:
    assert split_ranges("969, 30, 1") == [(0, 0.969), (0.969, 0.999), (0.999, 1.0)]
    assert split_ranges("0.5,0,0.5") == [(0, 0.5), None, (0.5, 1.0)]


CACHE = Path(__file__).parents[2] / "golden" / "orders" / "megatron_cache"
CACHED = ("a last epoch apart", "a blend by weight", "an exhaustive blend")


@pytest.mark.parametrize("name", CACHED)
def test_stored_indices_are_read(name: str, root: Path) -> None:
    """The cache holds what megatron-core 0.16.1 stored for these runs with `path_to_cache`."""
    data = recipe(RUNS[name], "train")
    plain = Recipe.parse(data, base=root).plan()
    data["order"]["cache"] = str(CACHE)
    plan = Recipe.parse(data, base=root).plan()
    assert plan.fingerprint == plain.fingerprint and rows(plan, 10**9) == rows(plain, 10**9)
    for dataset in plan.sources:
        assert isinstance(dataset, OrderedWindows) and isinstance(dataset.order, GptOrder)
        assert isinstance(dataset.order.shuffle.base, np.memmap)


def stored(folder: Path, name: str) -> list[Path]:
    found = []
    for path in folder.glob("*-description.txt"):
        about = json.loads(path.read_text())
        if about.get("dataset_path") == "a_text_document" and about["num_samples"] == RUNS[name]["samples"][0]:
            found.append(path)
    return found


def test_stored_indices_that_do_not_fit_are_refused(root: Path, tmp_path: Path) -> None:
    name = "a last epoch apart"
    folder = Path(shutil.copytree(CACHE, tmp_path / "cache"))
    data = recipe(RUNS[name], "train")
    data["order"]["cache"] = str(folder)
    (about,) = stored(folder, name)
    index = about.with_name(about.name.replace("description.txt", "shuffle_index.npy"))
    whole = index.read_bytes()

    def fails(error: type[FeedmillError], words: str) -> None:
        with pytest.raises(error, match=words):
            Recipe.parse(data, base=root).plan().read([0])

    np.save(index, np.arange(3))
    fails(DataError, "the stored indices have the shapes")
    index.write_bytes(whole[:200])
    fails(DataError, "it is not an array of numpy")
    np.save(index, np.array([{"an": "object"}]), allow_pickle=True)
    fails(DataError, "it is not an array of numpy")
    np.save(index, np.zeros(3))
    fails(DataError, "its type is float64")
    index.write_bytes(whole)
    samples = about.with_name(about.name.replace("description.txt", "sample_index.npy"))
    np.save(samples, np.load(samples) + np.array([0, 1]))
    fails(DataError, "and bounds of 16 tokens")
    about.write_text("[]")
    fails(DataError, "is not a JSON object")
    about.unlink()
    fails(ConfigError, "the cache has no indices for a_text_document, train, split 949,30,21, random_seed 1234")
    data = {**recipe(RUNS["a blend by weight"], "train")}
    data["order"]["cache"] = str(folder)
    data["order"]["surplus"] = 0.5
    fails(ConfigError, "the cache has no indices for a_text_document")
    data["order"]["surplus"] = 0.005
    for path in folder.glob("*BlendedDataset*"):
        path.unlink()
    fails(ConfigError, "the cache has no blend of a_text_document, b_text_document, c_text_document with 700 samples")
