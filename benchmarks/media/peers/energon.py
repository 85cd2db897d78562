"""Measure Energon's AVDecoder over files, and its packing while loading."""

from __future__ import annotations

from pathlib import Path

from benchmarks.lib.side import answer
from benchmarks.media.clips import COUNT, SECONDS, Clips, timed


def clips(path: str, cores: str) -> dict[str, float]:
    """Yield the clips of each video for `timed`."""
    return timed(_decode, path, cores)


def _decode(path: Path, _threads: int) -> Clips:
    import io
    import warnings

    from megatron.energon.av import AVDecoder, get_clips_uniform

    warnings.simplefilter("ignore")
    for file in sorted((path / "files").glob("*.mp4")):
        video = AVDecoder(io.BytesIO(file.read_bytes()))
        facts = video.get_metadata(get_audio=False)
        yield facts.video_num_frames, get_clips_uniform(video, SECONDS, COUNT, request_video=True).video_clips


def rows(path: str, seq_len: str, packer: str) -> dict[str, float]:
    """Pack samples into rows from a buffer.

    A length is the cheapest that packing while loading can do with: the size in the header of each picture, and the
    bytes of the text, for a tokenizer with a token for each byte. The packer ``documented`` is that of Energon's page
    on packing: samples in ascending order, as many as fit. ``knapsack`` is that of Megatron's multimodal example: the
    longest sample that fits, again and again.
    """
    import bisect
    import io
    import json

    from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset, stateless
    from PIL import Image

    from benchmarks.media.rows import BUFFER, length, timed_rows

    room = int(seq_len)

    @stateless
    def cook(sample):
        pictures = [sample[name] for name in sorted(sample) if name.endswith("jpg")]
        return {**sample, "pictures": pictures}

    def documented(samples):
        samples.sort(key=lambda sample: sample["length"])
        groups = []
        while len(samples) > 0 and samples[0]["length"] < room:
            batch, total = [], 0
            while len(samples) > 0 and total + samples[0]["length"] < room:
                batch.append(samples.pop(0))
                total += batch[-1]["length"]
            groups.append(batch)
        return groups

    class Packing(DefaultTaskEncoder):
        decoder = None
        cookers = (Cooker(cook),)

        @stateless
        def preencode_sample(self, sample):
            sizes = [Image.open(io.BytesIO(data)).size for data in sample["pictures"]]
            return {**sample, "length": length(json.loads(sample["json"])["messages"], sizes)}

        def select_samples_to_pack(self, samples):
            if packer == "documented":
                return documented(samples)
            left = sorted((sample for sample in samples if sample["length"] <= room), key=lambda one: one["length"])
            sizes = [sample["length"] for sample in left]
            packs = []
            while left:
                pack, free = [], room
                while left and (at := bisect.bisect_right(sizes, free) - 1) >= 0:
                    free -= sizes.pop(at)
                    pack.append(left.pop(at))
                packs.append(pack)
            return packs

        @stateless
        def pack_selected_samples(self, samples):
            size = sum(len(data) for sample in samples for data in (*sample["pictures"], sample["json"]))
            return {"lengths": [sample["length"] for sample in samples], "bytes": size}

    def load():
        dataset = get_train_dataset(
            path,
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
            batch_size=None,
            shuffle_buffer_size=None,
            max_samples_per_sequence=100,
            packing_buffer_size=BUFFER,
            dataset_config="crude.yaml",
            task_encoder=Packing(),
            repeat=False,
        )
        for row in get_loader(dataset):
            assert row["bytes"] > 0
            yield row["lengths"]

    return timed_rows(load, room)


if __name__ == "__main__":
    answer(globals())
