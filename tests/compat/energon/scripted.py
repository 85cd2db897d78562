"""A task as users of Energon write it, with its imports changed and nothing else."""

from __future__ import annotations

import json

import torch
from feedmill.compat.energon.flavors.webdataset import SampleDecoder
from feedmill.compat.energon.task_encoder.base import TaskEncoder

from feedmill.compat.energon import (
    Batch,
    CaptioningSample,
    Cooker,
    DefaultTaskEncoder,
    FileStore,
    Sample,
    SkipSample,
    basic_sample_keys,
    batch_list,
    batch_pad_stack,
    batch_stack,
    cooker,
    edataclass,
    stateless,
)


@edataclass
class EncodedSample(Sample):
    image: torch.Tensor
    tokens: torch.Tensor
    weight: float | None = None


@edataclass
class CaptionBatch(Batch):
    images: torch.Tensor
    tokens: torch.Tensor
    captions: list[str]
    longest: int = 0


class CaptioningTask(DefaultTaskEncoder[CaptioningSample, EncodedSample, CaptionBatch, CaptionBatch]):
    decoder = SampleDecoder(image_decode="torchrgb")

    def __init__(self, size: int = 8):
        super().__init__()
        self.size = size

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: CaptioningSample) -> EncodedSample:
        left = int(torch.randint(0, 3, (1,)))
        image = sample.image[:, left : left + self.size, : self.size]
        image = torch.nn.functional.pad(image, (0, self.size - image.shape[2], 0, self.size - image.shape[1]))
        return EncodedSample.derive_from(sample, image=image, tokens=torch.tensor([ord(c) for c in sample.caption]))

    def batch(self, samples: list[EncodedSample]) -> CaptionBatch:
        return CaptionBatch(
            __key__=batch_list([s.__key__ for s in samples]),
            __restore_key__=batch_list([s.__restore_key__ for s in samples]),
            images=batch_stack([s.image for s in samples]),
            tokens=batch_pad_stack([s.tokens for s in samples]),
            captions=["".join(map(chr, s.tokens.tolist())) for s in samples],
        )

    def encode_batch(self, batch: CaptionBatch) -> CaptionBatch:
        return CaptionBatch.derive_from(
            batch, images=batch.images, tokens=batch.tokens, captions=batch.captions, longest=batch.tokens.shape[1]
        )


@edataclass
class QA(Sample):
    image: torch.Tensor | None
    text: str


@stateless
def cook_jsonl(sample: dict, images: FileStore, sounds: FileStore) -> QA:
    meta = sounds.get_media_metadata(sample["json"]["sound"])
    image = images.get(sample["json"]["image"], sample)
    return QA(**basic_sample_keys(sample), image=image, text=f"{sample['json']['text']} {meta.audio_duration}")


@stateless
@cooker(need_cache=True, need_primary=True)
def cook_texts(sample: dict, images: FileStore, primary: FileStore, cache) -> QA:
    lazy = cache.get_lazy(images, sample["json"]["image"])
    text = primary.get(sample["__key__"] + ".txt") + json.dumps(sample.get("none"))
    image = lazy.get(sample)
    return QA(**basic_sample_keys(sample), image=image, text=text)


class CookingTask(DefaultTaskEncoder):
    cookers = [  # noqa: RUF012
        Cooker(cook_jsonl, has_subflavors={"kind": "jsonl"}),
        Cooker(cook=cook_texts, has_subflavors={"kind": "wds"}),
    ]


class PackingTask(DefaultTaskEncoder):
    decoder = SampleDecoder(image_decode="rgb8")

    @stateless
    def preencode_sample(self, sample):
        if sample.__key__.endswith("7"):
            raise SkipSample()
        return {"key": sample.__key__, "length": len(sample.caption)}

    def select_samples_to_pack(self, samples):
        return [samples[i : i + 3] for i in range(0, len(samples), 3)]

    @stateless
    def postencode_sample(self, sample):
        return {**sample, "post": True}

    @stateless
    def pack_selected_samples(self, samples):
        return {"keys": [s["key"] for s in samples], "length": torch.tensor([s["length"] for s in samples])}


class GeneratingTask(TaskEncoder):
    decoder = SampleDecoder(image_decode="rgb8")

    def encode_sample(self, sample):
        for number in range(len(sample.caption) % 3):
            yield {"key": sample.__key__, "number": number}

    def batch(self, samples):
        return [(s["key"], s["number"]) for s in samples]


class GroupingTask(DefaultTaskEncoder):
    decoder = SampleDecoder(image_decode="rgb8")

    def batch_group_criterion(self, sample):
        return len(sample.caption) % 2, 3

    def batch(self, samples):
        return [len(s.caption) for s in samples]
