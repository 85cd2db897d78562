"""Hooks that yield, with packing and grouping too, and the restore keys of packs."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest

from feedmill.errors import ConfigError
from helpers.digests import GOLDEN

torch = pytest.importorskip("torch")

from feedmill.compat.energon import (  # noqa: E402
    AugmentTaskEncoder,
    DefaultTaskEncoder,
    SkipSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)

CAPTIONS = GOLDEN / "captioning" / "ds"
HOOKS = ("cook_crude_sample", "encode_sample", "preencode_sample", "postencode_sample", "pack_selected_samples")
BATCHES = ("batch", "encode_batch")


def where(workers: int = 0) -> WorkerConfig:
    return WorkerConfig(rank=0, world_size=1, num_workers=workers)


def texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else value


class Yielding(DefaultTaskEncoder):
    """Marks each value with the hooks that it went through; the hooks in `yielding` yield it twice."""

    def batch(self, samples: list[Any]) -> Any:
        return {
            "texts": [text for sample in samples for text in texts(sample["text"])],
            "__restore_key__": [sample["__restore_key__"] for sample in samples],
        }


class Packing(Yielding):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[first : first + 3] for first in range(0, len(samples), 3)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {"text": [text for sample in samples for text in texts(sample["text"])], "__restore_key__": ()}


def first_form(sample: Any) -> dict[str, Any]:
    if isinstance(sample, dict):
        return dict(sample)
    return {"text": sample.__key__, "__restore_key__": sample.__restore_key__}


def task(hook: str, packing: bool) -> Any:
    """Return an encoder whose `hook` yields everything twice, the second time with a mark."""
    base: Any = Packing if packing else Yielding

    def of_samples(self: Any, sample: Any) -> Any:
        made = first_form(getattr(base, hook)(self, sample))
        for mark in ("", "b"):
            yield {**made, "text": f"{made['text']}{mark}"}

    def of_packs(self: Any, samples: list[Any]) -> Any:
        for mark in ("", "b"):
            made = base.pack_selected_samples(self, samples)
            yield {**made, "text": [f"{text}{mark}" for text in made["text"]]}

    def of_batches(self: Any, given: Any) -> Any:
        for mark in ("", "b"):
            made = getattr(base, hook)(self, given)
            yield {**made, "texts": [f"{text}{mark}" for text in made["texts"]]}

    def plain(self: Any, sample: Any) -> Any:
        return first_form(sample)

    kinds = {"pack_selected_samples": of_packs, **dict.fromkeys(BATCHES, of_batches)}
    hooks = {hook: kinds.get(hook, of_samples)}
    if hook in ("pack_selected_samples", *BATCHES):
        hooks["encode_sample"] = plain
    elif hook == "postencode_sample":
        hooks["preencode_sample"] = plain
    return type("Task", (base,), hooks)()


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("hook", [*HOOKS, *BATCHES])
def test_every_hook_may_yield(hook: str, packing: bool) -> None:
    if hook == "pack_selected_samples" and not packing:
        pytest.skip("it packs")

    def load(encoder: Any) -> Any:
        buffer = 4 if packing else None
        dataset = get_train_dataset(
            CAPTIONS,
            worker_config=where(),
            batch_size=2,
            packing_buffer_size=buffer,
            task_encoder=encoder,
            repeat=False,
        )
        return get_savable_loader(dataset)

    whole = [batch["texts"] for batch in load(task(hook, packing))]
    every = [text for batch in whole for text in batch]
    keys = sorted({text.removesuffix("b") for text in every})
    assert len(keys) == 4 and sorted(every) == sorted([*keys, *(f"{key}b" for key in keys)])
    for stop in range(len(whole)):
        begun = load(task(hook, packing))
        first = [batch["texts"] for batch in islice(begun, stop)]
        resumed = load(task(hook, packing))
        resumed.restore_state_rank(json.loads(json.dumps(begun.save_state_rank())))
        assert first + [batch["texts"] for batch in resumed] == whole
    loader = load(task(hook, packing))
    if hook in BATCHES:
        assert not loader.can_restore_sample()
        return
    for batch in load(task(hook, packing)):
        assert loader.restore_sample(batch["__restore_key__"]) == batch


def test_groups_of_samples_that_were_yielded() -> None:
    class Grouping(DefaultTaskEncoder):
        def encode_sample(self, sample: Any) -> Any:
            for number in range(3):
                yield {"key": sample.__key__, "number": number}

        def batch_group_criterion(self, sample: Any) -> Any:
            return sample["number"], 2

        def batch(self, samples: list[Any]) -> Any:
            return {sample["number"] for sample in samples}, len(samples)

    dataset = get_val_dataset(
        CAPTIONS, split_part="train", worker_config=where(), batch_size=None, task_encoder=Grouping()
    )
    assert sorted((min(numbers), count) for numbers, count in get_savable_loader(dataset)) == [
        (number, 2) for number in range(3) for _ in range(2)
    ]


def test_hooks_that_yield_may_be_wrapped_seeded_and_skip() -> None:
    class Inner(DefaultTaskEncoder):
        @stateless(restore_seeds=True)
        def encode_sample(self, sample: Any) -> Any:
            for number in range(2):
                yield {"key": sample.__key__, "number": number, "drawn": int(torch.randint(0, 1 << 30, (1,)))}

        def select_samples_to_pack(self, samples: list[Any]) -> Any:
            if len(samples) < 8:
                raise SkipSample
            return [samples[:4], samples[4:]]

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return {"drawn": [sample["drawn"] for sample in samples]}

        def batch(self, samples: list[Any]) -> Any:
            return [sample["drawn"] for sample in samples]

    def drawn(encoder: Any, workers: int) -> Any:
        dataset = get_train_dataset(
            CAPTIONS, worker_config=where(workers), batch_size=1, packing_buffer_size=4, task_encoder=encoder
        )
        loader = get_savable_loader(dataset)
        found = [batch[0] for batch in islice(loader, 6)]
        loader.close()
        return found

    first = drawn(Inner(), 0)
    assert first == drawn(AugmentTaskEncoder(Inner()), 0) == drawn(Inner(), 2)
    assert len({number for pack in first for number in pack}) == 24


def test_packing_cannot_be_combined_with_groups() -> None:
    class Both(Packing):
        def batch_group_criterion(self, sample: Any) -> Any:
            return 0, None

    with pytest.raises(ConfigError, match="packing and grouping cannot be combined"):
        get_savable_loader(
            get_train_dataset(CAPTIONS, worker_config=where(), batch_size=1, packing_buffer_size=4, task_encoder=Both())
        )
