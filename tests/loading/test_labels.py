"""Labels say what the plan says, for every kind of batch: checked against `plan.locate` and `plan.spans`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.loading.encoder import TaskEncoder
from feedmill.loading.failures import SkipSample
from feedmill.loading.labels import Labels
from feedmill.loading.loader import Loader
from feedmill.loading.typed import TypedTaskEncoder
from feedmill.planning.nodes import Blend
from feedmill.planning.plan import Plan
from feedmill.storage import LocalStore
from helpers.fakes import FakePlan
from helpers.number_dataset import Numbered
from helpers.tars import make_shards
from helpers.token_dataset import Tokenized

COLUMNS = ("row", "position", "source", "index", "epoch", "mask", "substituted")
DTYPES = ("int64", "int64", "int32", "int64", "int64", "bool", "bool")


def blend(length: int | None = None) -> Plan:
    plan = Plan.over([Numbered("web", 17, tokens=3), Numbered("code", 9, tokens=5)], weights=[2, 1], seed=4)
    if length is None:
        return plan
    return Plan(Blend(list(plan.node.children), [2, 1], length=length), plan.sources, plan.names, plan.seed)


def packed(tmp_path: Path, method: str = "best_fit", **options: Any) -> fm.tokens.PackedPlan:
    rng = np.random.default_rng(3)
    sources = [Tokenized("web", rng.integers(0, 40, 50)), Tokenized("code", rng.integers(0, 9, 70), 100_000)]
    return fm.tokens.PackedPlan(
        Plan.over(sources, weights=[1, 2], shuffle="global", seed=2), fm.tokens.Packing(16, method, **options), tmp_path
    )


def check(labels: Labels, plan: Any, position: Any) -> None:
    """What labels of whole samples say about these positions."""
    located = plan.locate(np.asarray(position))
    assert labels.rows == len(labels) == len(position) and labels.tokens is None
    assert labels.row.tolist() == list(range(len(position)))
    assert labels.position.tolist() == list(position)
    for name in ("source", "index", "epoch"):
        assert getattr(labels, name).tolist() == getattr(located, name).tolist(), name
    assert [getattr(labels, name).dtype.name for name in COLUMNS] == list(DTYPES)


def names_of(labels: Labels) -> list[str]:
    """The texts of `Numbered` samples that labels speak of."""
    pairs = zip(labels.source.tolist(), labels.index.tolist(), strict=True)
    return [f"{labels.names[source]}:{index}" for source, index in pairs]


def text(sample: Any) -> dict[str, Any]:
    return {"text": sample.raw("txt").decode()}


@dataclass
class Texts:
    text: list[str]


def as_dataclass(samples: list[Any]) -> Texts:
    return Texts([sample["text"] for sample in samples])


def as_tuple(samples: list[Any]) -> tuple[list[str], int]:
    return [sample["text"] for sample in samples], len(samples)


@pytest.mark.parametrize(("ranks", "deal"), list(product((1, 2, 3), ("shuffled", "contiguous"))))
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_have_the_labels_of_the_plan(ranks: int, deal: Any, workers: int) -> None:
    plan, seen = blend(), []
    loaders = [
        Loader(plan, 4, rank=r, world_size=ranks, transform=text, deal=deal, workers=workers, labels=True)
        for r in range(ranks)
    ]
    for loader in loaders:
        for batch in islice(loader, 6):
            labels = batch["__labels__"]
            assert labels is loader.labels and set(batch) == {"text", "__labels__"}
            check(labels, plan, labels.position.tolist())
            assert names_of(labels) == batch["text"]
            assert labels.mask.all() and not labels.substituted.any()
            seen += labels.position.tolist()
    assert sorted(seen) == list(range(24 * ranks))


def test_names_are_one_object_and_nothing_is_there_unasked() -> None:
    loader = Loader(blend(), 4, rank=0, world_size=1, labels=True)
    one, other = (batch["__labels__"] for batch in islice(loader, 2))
    assert one.names is other.names and one.names == ("web", "code")
    plain = Loader(blend(), 4, rank=0, world_size=1)
    assert "__labels__" not in next(iter(plain))
    with pytest.raises(ConfigError, match="has no labels"):
        _ = plain.labels


def test_no_labels_before_the_first_batch() -> None:
    loader = Loader(blend(), 4, rank=0, world_size=1, labels=True, workers=2)
    with pytest.raises(ConfigError, match="no batch yet"):
        _ = loader.labels
    batches = iter(loader)
    next(batches)
    assert loader.labels.position.tolist() == [0, 1, 2, 3], "what is only prefetched has no labels yet"
    loader.close()


@pytest.mark.parametrize("collate", [as_dataclass, as_tuple])
@pytest.mark.parametrize("workers", [0, fm.Workers(2, processes=True)])
def test_batches_that_are_no_dicts(collate: Any, workers: Any) -> None:
    loader = Loader(blend(), 5, rank=1, world_size=2, transform=text, collate=collate, workers=workers, labels=True)
    for batch in islice(loader, 3):
        check(loader.labels, loader.plan, loader.labels.position.tolist())
        assert names_of(loader.labels) == (batch.text if isinstance(batch, Texts) else batch[0])


def test_plain_lists() -> None:
    loader = Loader(blend(), 5, rank=0, world_size=1, output="samples", labels=True)
    for batch in islice(loader, 3):
        assert names_of(loader.labels) == [sample.raw("txt").decode() for sample in batch]


@pytest.mark.parametrize("device", [None, "cpu"])
def test_tensors(device: str | None) -> None:
    torch = pytest.importorskip("torch")
    plan = blend()
    loader = Loader(plan, 5, rank=0, world_size=1, output="torch", device=device, labels=True)
    for batch in islice(loader, 3):
        labels = batch["__labels__"]
        assert all(isinstance(getattr(labels, name), torch.Tensor) for name in COLUMNS) and labels.tokens is None
        assert labels.source.tolist() == plan.locate(labels.position.numpy()).source.tolist()
        loss = torch.arange(5.0, requires_grad=True)
        wanted = Labels(labels.rows, {name: np.asarray(getattr(labels, name)) for name in COLUMNS})
        assert list(labels.mean(loss).values()) == list(wanted.mean(loss.detach().numpy()).values())
        assert labels.mean(loss.bfloat16()) == labels.mean(loss)


def test_worker_processes_keep_no_batch_alive() -> None:
    loader = Loader(blend(), 4, rank=0, world_size=1, workers=fm.Workers(2, processes=True), labels=True)
    kept = []
    for batch in islice(loader, 5):
        kept.append(batch["__labels__"])
        assert all(getattr(loader.labels, name).base is None for name in COLUMNS)
        assert names_of(loader.labels) == [data.decode() for data in batch["txt"]]
    for step, labels in enumerate(kept):
        check(labels, loader.plan, range(4 * step, 4 * step + 4))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_batch_that_is_filled_up(ranks: int) -> None:
    plan, real = blend(13), []
    for rank in range(ranks):
        loader = Loader(plan, 4, rank=rank, world_size=ranks, remainder="pad", labels=True)
        for batch in loader:
            labels = batch["__labels__"]
            check(labels, plan, labels.position.tolist())
            assert labels.mask.tolist() == batch["__mask__"].tolist()
            assert labels.sums(np.ones(4))[1].sum() == labels.mask.sum(), "they are in no mean"
            assert (labels.of_tokens(3)[~labels.mask] == -1).all()
            real += labels.position[labels.mask].tolist()
    assert sorted(real) == list(range(13))


def test_balanced() -> None:
    plan, seen = blend(), []
    for rank in range(3):
        loader = Loader(plan, 4, rank=rank, world_size=3, balance="tokens", transform=text, labels=True)
        for batch in islice(loader, 4):
            check(loader.labels, plan, loader.labels.position.tolist())
            assert names_of(loader.labels) == batch["text"]
            seen += loader.labels.position.tolist()
    assert sorted(seen) == list(range(48))


def test_resume_in_mid_run() -> None:
    plan = blend()
    first = Loader(plan, 4, rank=0, world_size=1, labels=True, workers=2)
    for _ in islice(first, 3):
        pass
    first.close()
    assert first.labels.position.tolist() == [8, 9, 10, 11]
    second = Loader(plan, 2, rank=1, world_size=2, labels=True, deal="contiguous")
    second.load_state_dict(first.state_dict())
    next(iter(second))
    check(second.labels, plan, [14, 15])


def test_a_batch_made_again() -> None:
    plan = blend()
    loader = Loader(plan, 4, rank=0, world_size=1, transform=text, labels=True)
    batch = loader.again([7, 3, 7])
    check(batch["__labels__"], plan, [7, 3, 7])
    assert names_of(batch["__labels__"]) == batch["text"]


def test_a_plan_without_names() -> None:
    plan = FakePlan()
    loader = Loader(plan, 4, rank=0, world_size=1, labels=True)
    batch = next(iter(loader))
    check(batch["__labels__"], plan, [0, 1, 2, 3])
    assert loader.labels.names == () and loader.labels.mean([1, 2, 3, 4]) == {"0": 2.0, "1": 3.0}


# Rows that the plan packs


@pytest.mark.parametrize(
    ("method", "options"),
    [("best_fit", {}), ("concat", {}), ("concat", {"overlap": True}), ("best_fit", {"long": "drop"})],
)
@pytest.mark.parametrize(
    ("workers", "ranks"),
    [(0, 2), *(pytest.param(*how, marks=pytest.mark.slow) for how in ((0, 1), (fm.Workers(1, processes=True), 2)))],
)
def test_packed_rows(tmp_path: Path, method: str, options: dict[str, Any], workers: Any, ranks: int) -> None:
    plan = packed(tmp_path, method, **options)
    loader = Loader(plan, 3, rank=ranks - 1, world_size=ranks, workers=workers, labels=True)
    for batch in islice(loader, 4):
        labels = batch["__labels__"]
        assert labels.tokens.dtype == np.int64 and labels.rows == 3
        entry = 0
        for row in range(3):
            position = int(labels.position[labels.row == row][0])
            spans = plan.spans([position])
            located = plan.documents.locate(spans.position)
            stop = entry + len(spans.position)
            assert labels.row[entry:stop].tolist() == [row] * len(spans.position)
            assert labels.position[entry:stop].tolist() == [position] * len(spans.position)
            for name in ("source", "index", "epoch"):
                assert getattr(labels, name)[entry:stop].tolist() == getattr(located, name).tolist()
            assert labels.tokens[entry:stop].tolist() == spans.length.tolist()
            bounds = np.diff(batch["cu_seqlens"][row]).tolist()
            assert bounds[: len(spans.position)] == spans.length.tolist(), "in the order of cu_seqlens"
            assert len(plan.read([position])[0]["input_ids"]) == plan.width
            entry = stop
        assert entry == len(labels)
        # The tokens of "code" begin at 100,000, so each token says itself which source it is from.
        ids = batch["input_ids"]
        for width in (plan.width, plan.width - 1, 5):
            wanted = np.where(np.arange(width) < batch["tokens"][:, None], ids[:, :width] >= 100_000, -1)
            assert np.array_equal(labels.of_tokens(width), wanted)
        sums, counts = labels.sums(ids)
        assert counts.sum() == batch["tokens"].sum() and sums.sum() == ids.sum()
        flat = np.repeat(labels.source, labels.tokens)
        assert np.bincount(flat, minlength=2).tolist() == counts.tolist(), "one line of numpy"


def test_packed_rows_with_targets_and_a_mask(tmp_path: Path) -> None:
    loader = Loader(packed(tmp_path), 4, rank=0, world_size=1, collate=fm.tokens.with_targets, labels=True)
    for batch in islice(loader, 3):
        counted = batch["targets"] != -100
        means = loader.labels.mean(batch["targets"], counted)
        ids, targets = batch["inputs"], batch["targets"]
        wanted = {
            name: targets[counted & side].mean()
            for name, side in (("web", ids < 100_000), ("code", ids >= 100_000))
            if (counted & side).any()
        }
        assert means == pytest.approx(wanted)
        with pytest.raises(ConfigError, match="several documents"):
            loader.labels.mean(np.ones(4))


def broken_rows(row: dict[str, Any]) -> dict[str, Any]:
    if row["input_ids"][0] % 3 == 0:
        raise ValueError("a broken row")
    return dict(row)


def test_labels_of_a_row_that_stands_in_are_its_own(tmp_path: Path) -> None:
    plan = packed(tmp_path, rows=60)
    loader = Loader(plan, 6, rank=0, world_size=1, transform=broken_rows, on_error="substitute", labels=True)
    substitutes = 0
    for step, batch in enumerate(loader):
        labels = loader.labels
        assert list(dict.fromkeys(labels.position.tolist())) == list(range(6 * step, 6 * step + 6))
        ids = batch["input_ids"]
        wanted = np.where(np.arange(16) < batch["tokens"][:, None], ids >= 100_000, -1)
        assert np.array_equal(labels.of_tokens(16), wanted)
        bad = [row for row in range(6) if plan.read([6 * step + row])[0]["input_ids"][0] % 3 == 0]
        assert sorted(set(labels.row[labels.substituted].tolist())) == bad
        substitutes += len(bad)
    assert substitutes == loader.failures > 0


def test_windows_are_samples(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 30_000)):
        with write_pbin(LocalStore(tmp_path), f"{name}.pbin", 2) as writer:
            writer.add(np.arange(first, first + 900, dtype=np.uint16), np.full(9, 100))
    sources = [fm.open(str(tmp_path / f"{name}.pbin"), seq_len=16) for name in "ab"]
    plan = Plan.over(sources, weights=[1, 3])
    for rank in range(2):
        loader = Loader(plan, 8, rank=rank, world_size=2, labels=True)
        for batch in islice(loader, 4):
            labels = batch["__labels__"]
            check(labels, plan, labels.position.tolist())
            tokens = batch["input_ids"]
            assert labels.source.tolist() == (tokens[:, 0] >= 30_000).astype(int).tolist()
            assert (labels.of_tokens(16) == (tokens[:, :16] >= 30_000)).all()


# Task encoders


class Plain(TaskEncoder):
    def encode_sample(self, sample: Any) -> dict[str, Any]:
        return {"text": sample.raw("txt").decode()}


class Packer(TaskEncoder):
    """Packs of two, of samples that lie apart; some packs and samples are skipped."""

    def preencode_sample(self, sample: Any) -> list[str]:
        return [sample.raw("txt").decode()]

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        half = len(samples) // 2
        return [[first, second] for first, second in zip(samples[:half], reversed(samples[half:]), strict=False)]

    def pack_selected_samples(self, samples: list[list[str]]) -> dict[str, Any]:
        texts = [text for sample in samples for text in sample]
        if texts[0] == "web:3":
            raise SkipSample
        return {"texts": texts}


class Copier(Packer):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [[samples[0], list(samples[1])]] if len(samples) > 1 else []


class Grouper(TaskEncoder):
    def encode_sample(self, sample: Any) -> dict[str, Any]:
        return {"text": sample.raw("txt").decode()}

    def batch_group_criterion(self, sample: dict[str, Any]) -> tuple[Any, int | None]:
        if sample["text"] == "code:4":
            raise SkipSample
        return sample["text"].partition(":")[0], 3


def test_a_task_encoder_without_packs() -> None:
    loader = Loader(blend(), 4, rank=0, world_size=2, task_encoder=Plain(), labels=True)
    for batch in islice(loader, 4):
        assert names_of(loader.labels) == batch["text"]


@pytest.mark.parametrize("workers", [0, 2, fm.Workers(1, processes=True)])
@pytest.mark.parametrize("length", [None, 45])
def test_packs(workers: Any, length: int | None) -> None:
    plan = blend(length)
    loader = Loader(plan, 3, rank=1, world_size=2, task_encoder=Packer(), buffer=7, workers=workers, labels=True)
    batches = list(islice(loader, 6))
    loader.close()
    assert batches
    for batch in batches:
        labels = batch["__labels__"]
        located = plan.locate(labels.position)
        assert located.index.tolist() == labels.index.tolist() and labels.epoch.tolist() == located.epoch.tolist()
        texts = np.array(names_of(labels))
        assert labels.rows == len(batch["texts"])
        for row, pack in enumerate(batch["texts"]):
            assert texts[labels.row == row].tolist() == pack
        with pytest.raises(ConfigError, match="only the task encoder knows"):
            labels.mean(np.ones((labels.rows, 5)))


def test_packs_of_copies_have_no_labels() -> None:
    loader = Loader(blend(), 3, rank=0, world_size=1, task_encoder=Copier(), buffer=6, labels=True)
    with pytest.raises(ConfigError, match="its label is unknown"):
        next(iter(loader))


@pytest.mark.parametrize("workers", [0, fm.Workers(1, processes=True)])
def test_groups_and_resume(workers: Any) -> None:
    plan = blend()

    def loader() -> Loader:
        encoder = Grouper()
        return Loader(plan, 4, rank=0, world_size=1, task_encoder=encoder, buffer=16, workers=workers, labels=True)

    first, second = loader(), loader()
    whole = [(batch["text"], first.labels.position.tolist()) for batch in islice(first, 12)]
    first.close()
    for texts, position in whole:
        located = plan.locate(np.array(position))
        pairs = zip(located.source.tolist(), located.index.tolist(), strict=True)
        assert texts == [f"{plan.names[source]}:{index}" for source, index in pairs]
        assert len({text.partition(":")[0] for text in texts}) == 1
    half = loader()
    for _ in islice(half, 5):
        pass
    half.close()
    second.load_state_dict(half.state_dict())
    assert [(batch["text"], second.labels.position.tolist()) for batch in islice(second, 7)] == whole[5:]
    second.close()


# Substitutes


def refuses(sample: Any) -> dict[str, Any]:
    found = sample.raw("txt").decode()
    if found in ("web:3", "web:5"):
        raise ValueError("broken")
    if found == "code:2":
        raise SkipSample
    return {"text": found}


@pytest.mark.parametrize("workers", [0, 2, fm.Workers(1, processes=True)])
def test_substitutes(workers: Any) -> None:
    plan = blend()
    loader = Loader(
        plan, 4, rank=0, world_size=1, transform=refuses, on_error="substitute", workers=workers, labels=True
    )
    count = 0
    for step, batch in enumerate(islice(loader, 12)):
        labels = batch["__labels__"]
        assert labels.position.tolist() == list(range(4 * step, 4 * step + 4)), "positions are the planned ones"
        located = plan.locate(labels.position)
        assert labels.source.tolist() == located.source.tolist()
        assert names_of(labels) == batch["text"], "and the rest is of the sample that stands there"
        pairs = zip(located.source.tolist(), located.index.tolist(), strict=True)
        planned = [f"{plan.names[source]}:{index}" for source, index in pairs]
        assert labels.substituted.tolist() == [name in ("web:3", "web:5", "code:2") for name in planned]
        count += int(labels.substituted.sum())
    loader.close()
    assert count == loader.failures + loader.skipped > 0


# Fields of that name, and Energon's


def own_labels(samples: list[Any]) -> dict[str, Any]:
    return {"__labels__": [1] * len(samples)}


def test_a_field_of_that_name_is_not_overwritten() -> None:
    loader = Loader(blend(), 4, rank=0, world_size=1, collate=own_labels, labels=True)
    with pytest.raises(ConfigError, match="already has a field '__labels__'"):
        next(iter(loader))
    assert loader.position == 0, "the batch was not given out"


def typed(folder: Path) -> Plan:
    """A prepared dataset of `TextSample`s, twice, as two sources."""
    make_shards(folder, [8, 6])
    fm.prepare(str(folder), split_ratio="1,0,0", sample_type="TextSample", field_map={"text": "txt"})
    return Plan.over([fm.open(str(folder), split="train")] * 2, weights=[1, 2])


def energon_sources(batch: Any) -> list[int]:
    """The sample numbers that the samples' own ``__sources__`` say."""
    found = batch["__sources__"] if isinstance(batch, dict) else batch.__sources__
    return [source.index for each in found for source in (each if isinstance(each, tuple) else (each,))]


def test_typed_samples_keep_sources_of_their_own(tmp_path: Path) -> None:
    plan = typed(tmp_path)
    for encoder in (None, TypedTaskEncoder()):
        plain = Loader(plan, 4, rank=0, world_size=1, task_encoder=encoder)
        loader = Loader(plan, 4, rank=0, world_size=1, task_encoder=encoder, labels=True)
        for batch, wanted in islice(zip(loader, plain, strict=True), 4):
            check(loader.labels, plan, loader.labels.position.tolist())
            assert energon_sources(batch) == energon_sources(wanted) == loader.labels.index.tolist()
            assert not isinstance(batch, dict) or batch["__labels__"] is loader.labels


# The arithmetic


def test_means_by_brute_force() -> None:
    rng = np.random.default_rng(5)
    plan = blend()
    loader = Loader(plan, 16, rank=0, world_size=1, labels=True)
    for _ in islice(loader, 3):
        labels = loader.labels
        for shape in ((16,), (16, 7), (16, 2, 3)):
            values, mask = rng.normal(size=shape), rng.random(shape) < 0.5
            sums, counts = labels.sums(values, mask)
            for number in range(2):
                rows = [row for row in range(16) if labels.source[row] == number]
                assert counts[number] == sum(mask[row].sum() for row in rows)
                assert sums[number] == pytest.approx(sum(values[row][mask[row]].sum() for row in rows))
            assert sums.dtype == np.float64 and counts.dtype == np.int64
        assert labels.mean(np.ones(16), np.zeros(16)) == {}
    for shape in ((), (15,), (17, 2)):
        with pytest.raises(ConfigError, match="do not fit labels of 16 rows"):
            labels.mean(np.ones(shape))
    with pytest.raises(ConfigError, match=r"a mask of shape \[16, 1\]"):
        labels.mean(np.ones(16), np.ones((16, 1)))
