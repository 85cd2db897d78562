"""The example of Energon's page on packing, unchanged but for the import, with the rows of a plan."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm

pytest.importorskip("torch")
pytest.importorskip("PIL.Image")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
from feedmill.indexing.prepare import prepare
from feedmill.indexing.prepare_media import prepare_media
from feedmill.samples.media import MediaFilter
from helpers.processor_data import picture, processor
from helpers.tars import tar_bytes

EXAMPLE = '''
from typing import List

from megatron.energon import CaptioningSample, DefaultTaskEncoder, SampleDecoder, stateless


class CaptioningTaskEncoder(DefaultTaskEncoder):
    """A simple task encoder for captioning."""

    decoder = SampleDecoder(image_decode="torchrgb")

    def __init__(self, image_transform, max_length: int = 128):
        super().__init__()
        self.image_transform = image_transform
        self.max_length = max_length


class PackingCaptioningTaskEncoder(CaptioningTaskEncoder):
    @stateless(restore_seeds=True)
    def encode_sample(self, sample: CaptioningSample) -> CaptioningSample:
        sample.image = self.image_transform(sample.image)
        return sample

    def select_samples_to_pack(self, samples: List[CaptioningSample]) -> List[List[CaptioningSample]]:
        # Do something intelligent here, e.g. sort by caption length and concat where possible.
        # This could be better, but it's just an example.
        samples.sort(key=lambda x: len(x.caption))
        groups = []
        while len(samples) > 0:
            batch = []
            caption_len = 0
            while len(samples) > 0 and caption_len + len(samples[0].caption) < self.max_length:
                sample = samples.pop(0)
                batch.append(sample)
                caption_len += len(sample.caption)
            groups.append(batch)
        return groups

    @stateless
    def pack_selected_samples(self, samples: List[CaptioningSample]) -> CaptioningSample:
        return CaptioningSample(
            __key__=",".join([sample.__key__ for sample in samples]),
            __restore_key__=(),
            image=sum(sample.image.sum() for sample in samples),
            caption=" ".join(sample.caption for sample in samples),
        )
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Captions that name their picture, a recipe that packs them, and a processor."""
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    members = []
    for number in range(40):
        members.append((f"{number:03}.jpg", picture(*rng.integers(40, 300, 2).tolist())))
        members.append((f"{number:03}.txt", b"<image>" + b"w" * int(rng.integers(5, 90))))
    (tmp_path / "captions").mkdir()
    (tmp_path / "captions/s.tar").write_bytes(tar_bytes(members))
    place = str(tmp_path / "captions")
    prepare(
        place,
        split_ratio=[1, 0, 0],
        sample_type="CaptioningSample",
        field_map={"image": "jpg", "caption": "txt"},
        progress=False,
    )
    prepare_media(place, media=MediaFilter.parse(extension=True), progress=False)
    processor(tmp_path / "p")
    (tmp_path / "r.yaml").write_text(
        "epochs: 1\nsource: {path: captions, lengths: next}\nlengths: {next: {processor: p, text: txt}}\n"
        "pack: {seq_len: 8192, long: drop}\n"
    )
    return tmp_path


def test_the_example_gets_rows_of_the_plan(folder: Path) -> None:
    """No buffer, no state by rank: every sample once, in the rows of the plan, and on from any of them."""
    from feedmill.compat.energon import WorkerConfig, get_savable_loader, get_train_dataset

    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(EXAMPLE.replace("megatron.energon", "feedmill.compat.energon"), "example", "exec"), names)
    encoder = names["PackingCaptioningTaskEncoder"](lambda image: image)
    made = get_train_dataset(
        folder / "r.yaml",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=None,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=encoder,
        repeat=False,
    )
    loader = get_savable_loader(made)
    batches = iter(loader)
    first = [next(batches) for _ in range(2)]
    state = loader.save_state_rank()
    rest = list(batches)
    plan = fm.Recipe.load(folder / "r.yaml").plan()
    assert [batch.__key__.split(",") for batch in first + rest] == [row.keys for row in plan.read(range(len(plan)))]
    assert sorted(itertools.chain(*(batch.__key__.split(",") for batch in first + rest))) == [
        f"{number:03}" for number in range(40)
    ]
    assert all(batch.caption.count("<image>") == len(batch.__key__.split(",")) for batch in rest)
    again = get_savable_loader(made)
    again.restore_state_rank(state)
    assert [batch.__key__ for batch in again] == [batch.__key__ for batch in rest]
