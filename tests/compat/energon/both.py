"""A script that runs with either package: ``both.py PACKAGE DATA``. Prints what validation and training give, as JSON.

Nothing in it depends on the package but the order of training.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

energon = importlib.import_module(sys.argv[1])
base = importlib.import_module(f"{sys.argv[1]}.task_encoder.base")
flavors = importlib.import_module(f"{sys.argv[1]}.flavors")
root = sys.argv[2]


@energon.edataclass
class Encoded(energon.Sample):
    image: object
    words: list


@energon.edataclass
class Words(energon.Batch):
    images: object
    words: list
    total: int = 0


class Captions(energon.DefaultTaskEncoder[flavors.CaptioningSample, Encoded, Words, Words]):
    decoder = flavors.SampleDecoder(image_decode="torchrgb") if hasattr(flavors, "SampleDecoder") else None

    @base.stateless
    def encode_sample(self, sample: flavors.CaptioningSample) -> Encoded:
        if sample.__key__.endswith("3"):
            raise energon.SkipSample()
        return Encoded.derive_from(sample, image=sample.image, words=sample.caption.split())

    def batch(self, samples):
        return Words.from_samples(samples, images=energon.batch_pad_stack([s.image for s in samples]), total=0)

    def encode_batch(self, batch):
        return Words.derive_from(batch, images=batch.images, words=batch.words, total=sum(map(len, batch.words)))


@energon.stateless
def cook_jsonl(sample, images, sounds):
    row = sample["json"]
    image = images.get(row["image"], sample)
    return energon.TextSample(
        **energon.basic_sample_keys(sample), text=f"{list(image.shape)} {sounds.get_media_metadata(row['sound'])!r:.13}"
    )


@energon.stateless
@energon.cooker(need_primary=True, need_cache=True)
def cook_texts(sample, images, primary, cache):
    lazy = cache.get_lazy(images, sample["json"]["image"])
    text = f"{primary.get('.txt')} {primary[sample['__key__'] + '.txt'][0]} {list(lazy.get(sample).shape)}"
    return energon.TextSample(**energon.basic_sample_keys(sample), text=text)


class Cooking(energon.DefaultTaskEncoder):
    cookers = [  # noqa: RUF012
        energon.Cooker(cook_jsonl, has_subflavors={"kind": "jsonl"}),
        energon.Cooker(cook_texts, has_subflavors={"kind": "wds"}),
    ]


def told(sample):
    return {
        "key": sample.__key__,
        "subflavors": sample.__subflavors__,
        "sources": [[str(s.dataset_path).rpartition("/")[2], s.index, s.shard_name] for s in sample.__sources__],
        "text": sample.text,
    }


def main():
    where = energon.WorkerConfig(rank=0, world_size=1, num_workers=0)
    common = {"worker_config": where}
    found = {}
    for name, size in (("all", 3), ("single", None)):
        task = Captions() if size else energon.DefaultTaskEncoder()
        dataset = energon.get_val_dataset(
            f"{root}/captioning/ds", split_part="train", batch_size=size, task_encoder=task, **common
        )
        loader = energon.get_loader(dataset)
        found[name] = [
            [b.__key__, b.words, b.total, list(b.images.shape), round(float(b.images.sum()), 1)]
            if size
            else [b.__key__, b.caption, list(b.image.shape)]
            for b in loader
        ]
    dataset = energon.get_val_dataset(
        f"{root}/crude_polylithic/both.yaml", split_part="train", batch_size=None, task_encoder=Cooking(), **common
    )
    pool = energon.NoCachePool()
    found["cooked"] = [told(sample) for sample in energon.get_loader(dataset, cache_pool=pool)]
    dataset = energon.get_train_dataset(
        f"{root}/captioning/ds",
        batch_size=2,
        shuffle_buffer_size=10,
        max_samples_per_sequence=10,
        virtual_epoch_length=4,
        task_encoder=Captions(),
        **common,
    )
    loader = energon.get_savable_loader(dataset)
    first = [batch.__key__ for batch in loader]
    state = loader.save_state_rank()
    after = [batch.__key__ for batch in loader]
    again = energon.get_savable_loader(dataset)
    again.restore_state_rank(state)
    found["train"] = [len(first), len(after), len([batch.__key__ for batch in again]), after != []]
    print("\n" + json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
