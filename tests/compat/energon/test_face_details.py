"""What users' code relies on beside the samples: `super()`, handlers, warnings, page-locked memory."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

from helpers.digests import GOLDEN

torch = pytest.importorskip("torch")

import feedmill.compat.energon as energon  # noqa: E402
from feedmill.compat.energon import DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_loader  # noqa: E402

CAPTIONS = GOLDEN / "captioning" / "ds"
HERE = torch.cuda.is_available()


def train(task: Any = None, *, batch_size: int | None = 4, where: Any = None, workers: int = 0, **more: Any) -> Any:
    where = where or WorkerConfig(rank=0, world_size=1, num_workers=workers)
    order = {"shuffle_buffer_size": 10, "max_samples_per_sequence": 10}
    task = task or DefaultTaskEncoder()
    return energon.get_train_dataset(
        CAPTIONS, worker_config=where, batch_size=batch_size, task_encoder=task, **order, **more
    )


class Calls(DefaultTaskEncoder):
    """Counts its calls of the hooks that it overrides, and leaves the rest to those."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []


class OfSamples(Calls):
    def cook_crude_sample(self, sample: Any) -> Any:
        self.calls.append("cook_crude_sample")
        return super().cook_crude_sample(sample)

    def encode_sample(self, sample: Any) -> Any:
        self.calls.append("encode_sample")
        return super().encode_sample(sample)

    def batch(self, samples: list[Any]) -> Any:
        self.calls.append("batch")
        return super().batch(samples)

    def encode_batch(self, batch: Any) -> Any:
        self.calls.append("encode_batch")
        return super().encode_batch(batch)


class OfStages(Calls):
    def preencode_sample(self, sample: Any) -> Any:
        self.calls.append("preencode_sample")
        return super().preencode_sample(sample)

    def postencode_sample(self, sample: Any) -> Any:
        self.calls.append("postencode_sample")
        return super().postencode_sample(sample)


class OfGroups(Calls):
    def batch_group_criterion(self, sample: Any) -> Any:
        self.calls.append("batch_group_criterion")
        return super().batch_group_criterion(sample)


@pytest.mark.parametrize("kind", [OfSamples, OfStages, OfGroups])
def test_every_hook_has_a_default_to_call(kind: type[Calls]) -> None:
    def keys(task: Any) -> list[list[str]]:
        return [batch.__key__ for batch in get_loader(train(task, repeat=False))]

    task = kind()
    assert keys(task) == keys(None)
    assert set(task.calls) == {name for name in vars(kind) if not name.startswith("__")}


def test_handlers_get_batches_as_lists() -> None:
    calls: list[Any] = []

    class Picky(DefaultTaskEncoder):
        def batch(self, samples: list[Any]) -> Any:
            if any(sample.__key__.endswith("3") for sample in samples):
                raise ValueError("not this batch")
            return super().batch(samples)

    where = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=lambda *given: calls.append(given))
    batches = list(islice(get_loader(train(Picky(), where=where)), 12))
    assert not any(key.endswith("3") for batch in batches for key in batch.__key__)
    error, samples, sources = calls[0]
    assert type(error) is ValueError and str(error) == "not this batch"
    assert [type(sample).__name__ for sample in samples] == ["CaptioningSample"] and samples[0].__key__.endswith("3")
    assert [source.shard_name for source in sources] == [samples[0].__sources__[0].shard_name]


def test_locations_are_those_of_energon() -> None:
    sample = next(iter(get_loader(train(batch_size=None))))
    assert all(isinstance(source, energon.SourceInfo) for source in sample.__sources__)
    assert not isinstance(sample, energon.SourceInfo) and not isinstance(("a", 1), energon.SourceInfo)


def test_a_decoder_describes_itself() -> None:
    made = SampleDecoder(image_decode="rgb8", av_decode="torch", video_decode_audio=True)
    assert made.config() == {
        "image_decode": "rgb8",
        "av_decode": "torch",
        "video_decode_audio": True,
        "guess_content": False,
    }
    assert SampleDecoder(**SampleDecoder().config()) == SampleDecoder()


def test_options_without_effect_are_named() -> None:
    with pytest.warns(UserWarning, match="^handler has no effect: use WorkerConfig"):
        dataset = train(handler=energon.log_exception)
    with pytest.warns(UserWarning, match="checkpoint_every_sec has no effect"):
        get_loader(dataset, checkpoint_every_sec=5)
    with pytest.warns(UserWarning, match="gc_collect_every_n_steps has no effect: call gc.collect"):
        get_loader(dataset, gc_collect_every_n_steps=5)
    with pytest.warns(UserWarning, match="shuffle_buffer_size has no effect: shuffle_over_epochs_mult"):
        train(shuffle_over_epochs_multiplier=None)


class WithArrays(DefaultTaskEncoder):
    def encode_batch(self, batch: Any) -> Any:
        return {"image": batch.image, "numbers": np.arange(3), "typed": batch}


@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_are_page_locked_where_it_helps(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """A machine with an accelerator, whose page-locked memory is that of this machine."""
    plain = next(iter(get_loader(train(WithArrays(), workers=workers))))
    locked: list[Any] = []

    def lock(tensor: Any) -> Any:
        locked.append(tensor.clone())
        return locked[-1]

    for module in ("loading.transfer", "compat.energon.loader", "compat.energon.datasets"):
        monkeypatch.setattr(f"feedmill.{module}.has_accelerator", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lock)
    loader = get_loader(train(WithArrays(), workers=workers))
    found = next(iter(loader))
    loader.close()
    assert torch.equal(found["image"], plain["image"]) and any(found["image"] is tensor for tensor in locked)
    assert any(found["typed"].image is tensor for tensor in locked) and found["typed"].__key__ == plain["typed"].__key__
    assert isinstance(found["numbers"], np.ndarray)


@pytest.mark.skipif(not HERE, reason="needs CUDA")
@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_are_page_locked_on_a_device(workers: int) -> None:
    batch = next(iter(get_loader(train(WithArrays(), workers=workers))))
    assert batch["image"].is_pinned() and batch["typed"].image.is_pinned()
