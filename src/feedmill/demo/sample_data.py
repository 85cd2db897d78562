"""Small data for the documentation and first steps: ``feedmill demo --data FOLDER``. Always the same bytes.

coco/shards/*.tar      60 images with captions, as tar shards of WebDataset
photos/*.jpg, *.txt    12 images with captions beside them
pets/train/cat/*.jpg   images in class folders, with splits
texts/                 plain text, Markdown, HTML, a CSV table
qa.jsonl               40 questions with answers

Trajectories of robots that reach for a point, with camera frames, are in VLA Foundry's format.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.demo.pages import add_member
from feedmill.errors import ConfigError, MissingExtra
from feedmill.formats.tokens.vla_text import member_header
from feedmill.formats.vla.manifest import Row, manifest_text
from feedmill.storage import Store

COLORS = ("red", "green", "blue", "white", "gray", "black")
_SHARDS, _PER_SHARD, _PHOTOS, _QUESTIONS = 10, 6, 12, 40
_TEXTS = 20
_SUBJECTS = ("The mill", "A river", "The baker", "An old sieve", "The field", "A grain of wheat")
_VERBS = ("turns", "carries", "weighs", "sorts", "feeds", "keeps")
_OBJECTS = ("the flour", "the water", "the harvest", "every stone", "the bread", "a hundred sacks")


def write_sample_data(store: Store) -> list[str]:
    """Write the sample data, and return the names in the folder.

    Raises:
        ConfigError: another file of such a name is there.
        MissingExtra: Pillow is not installed.
    """
    files = dict(_files())
    names = list(dict.fromkeys(path.partition("/")[0] for path in files))
    there = {path for path in files if store.exists(path)}
    other = next((path for path in sorted(there) if store.read(path) != files[path]), None)
    if other is not None:
        raise ConfigError(f"the folder has another {other!r}", file=store.url, kind="exists", fix="Use another folder.")
    for path, data in files.items():
        if path not in there:
            store.write_note(path, data)
    return names


def caption_files(first: int, count: int) -> list[tuple[str, bytes]]:
    """Return the files of `count` samples: an image of one color, and its caption as text and in JSON."""
    files = []
    for number in range(first, first + count):
        caption = caption_of(number)
        detail = json.dumps({"id": number, "caption": caption}).encode()
        files += [
            (f"{number:06d}.jpg", card(number)),
            (f"{number:06d}.txt", caption.encode()),
            (f"{number:06d}.detail.json", detail),
        ]
    return files


def caption_of(number: int) -> str:
    """Return the caption of a card."""
    return f"a {COLORS[number % len(COLORS)]} card"


def card(number: int, size: tuple[int, int] = (32, 24)) -> bytes:
    """Return an image of one color as JPEG. Raises `MissingExtra` without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("the images of the sample data need Pillow", extra="media") from None
    file = io.BytesIO()
    Image.new("RGB", size, COLORS[number % len(COLORS)]).save(file, "JPEG")
    return file.getvalue()


def questions(count: int) -> bytes:
    """Return questions with answers as JSON lines."""
    lines = ({"id": i, "question": f"What is {i}+1?", "answer": str(i + 1)} for i in range(count))
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def shard(files: Sequence[tuple[str, bytes]]) -> bytes:
    """Return a tar of files."""
    import tarfile

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files:
            add_member(tar, name, data)
    return out.getvalue()


def _files() -> Iterator[tuple[str, bytes]]:
    for number in range(_SHARDS):
        yield f"coco/shards/shard_{number:04d}.tar", shard(caption_files(_PER_SHARD * number, _PER_SHARD))
    for number in range(_PHOTOS):
        yield f"photos/card_{number:02d}.jpg", card(number)
        yield f"photos/card_{number:02d}.txt", caption_of(number).encode()
    for split, count in (("train", 4), ("val", 2)):
        for pet in range(2):
            for number in range(count):
                yield f"pets/{split}/{('cat', 'dog')[pet]}/{number}.jpg", card(number + pet)
    yield from _texts()
    yield "qa.jsonl", questions(_QUESTIONS)


def _texts() -> Iterator[tuple[str, bytes]]:
    for number in range(_TEXTS):
        sentences = [_sentence(number + 7 * i) for i in range(5 + number % 5)]
        yield f"texts/notes/note_{number:02d}.txt", " ".join(sentences).encode()
    yield "texts/guide.md", f"# A guide to milling\n\n{_sentence(1)} {_sentence(9)}\n".encode()
    page = f"<html><head><title>The mill</title></head><body><h1>The mill</h1><p>{_sentence(2)}</p></body></html>"
    yield "texts/page.html", page.encode()
    rows = [f'{number},"{_sentence(3 * number)} Well, it was good.",{1 + number % 5}' for number in range(10)]
    yield "texts/reviews.csv", ("id,content,stars\n" + "\n".join(rows) + "\n").encode()


def _sentence(number: int) -> str:
    subject, verb = _SUBJECTS[number % 6], _VERBS[(number // 6 + number) % 6]
    return f"{subject} {verb} {_OBJECTS[(number // 36 + 2 * number) % 6]} on day {number + 1}."


PAST, FUTURE, SIDE = 2, 5, 48
CAMERAS, INDICES = ("top", "wrist"), (-1, 0)
ACTION, STATE = "robot__action__xy", "robot__actual__xy"
_STEPS, _BLOCK, _ROBOT_SHARDS = 24, 512, 3


def write_robots(store: Store, folder: str, episodes: int, *, speed: float, seed: int) -> int:
    """Write episodes of a robot that moves toward a target, one sample per third step. Return the number of samples.

    Args:
        speed: fraction of the way to the target that it moves per step.

    Raises:
        MissingExtra: Pillow is not installed.
    """
    rng = np.random.default_rng(seed)
    samples = [sample for number in range(episodes) for sample in _episode(number, rng, speed)]
    rows = []
    for shard, numbers in enumerate(np.array_split(np.arange(len(samples)), _ROBOT_SHARDS)):
        name = f"shards/shard-{shard:06d}.tar"
        with store.write(f"{folder}/{name}") as out:
            for number in numbers.tolist():
                for part, data in samples[number]:
                    out.write(member_header(part, len(data)) + data + bytes(-len(data) % _BLOCK))
            out.write(bytes(2 * _BLOCK))
        rows.append(Row(name, len(numbers)))
    config = f"camera_names: {list(CAMERAS)}\nimage_indices: {list(INDICES)}\npast_lowdim_steps: {PAST}\n"
    store.write_bytes(f"{folder}/preprocessing_config.yaml", config.encode())
    store.write_bytes(f"{folder}/manifest.jsonl", manifest_text(rows))
    return len(samples)


def _episode(number: int, rng: np.random.Generator, speed: float) -> list[list[tuple[str, bytes]]]:
    """Return the samples of one episode, each as (member, bytes)."""
    at, target = rng.uniform(0.1, 0.9, 2), rng.uniform(0.1, 0.9, 2)
    path = [at]
    for _ in range(_STEPS):
        path.append(path[-1] + speed * (target - path[-1]) + rng.normal(0, 0.01, 2))
    points = np.array(path)
    moves = np.diff(points, axis=0)
    return [_sample(f"{number:04d}-{step:03d}", step, points[:-1], moves, target) for step in range(0, _STEPS, 3)]


def _sample(
    key: str, anchor: int, points: npt.NDArray[Any], moves: npt.NDArray[Any], target: npt.NDArray[Any]
) -> list[tuple[str, bytes]]:
    wanted = np.arange(anchor - PAST, anchor + FUTURE + 1)
    there = (wanted >= 0) & (wanted < len(points))
    steps = np.clip(wanted, 0, len(points) - 1)  # steps outside the episode are copies, as the masks show
    past = np.arange(len(wanted)) < PAST
    fields: dict[str, Any] = {
        ACTION: moves[steps],
        STATE: points[steps],
        "past_mask": there & past,
        "future_mask": there & ~past,
    }
    lowdim = io.BytesIO()
    np.savez_compressed(lowdim, **fields)
    parts = []
    for index in INDICES:
        hand = points[max(0, anchor + index)]
        for camera in CAMERAS:
            parts.append((f"{camera}_t{index}.jpg", _frame(hand, target, close=camera == "wrist")))
    parts.append(("lowdim.npz", lowdim.getvalue()))
    parts.append(("metadata.json", orjson.dumps({"anchor_relative_idx": PAST, "camera_names": list(CAMERAS)})))
    parts.append(("language_instructions.json", orjson.dumps({"original": ["reach the red point"]})))
    return [(f"{key}.{name}", data) for name, data in parts]


def _frame(hand: npt.NDArray[Any], target: npt.NDArray[Any], *, close: bool) -> bytes:
    """Return the scene from above, or a close-up of the hand, as JPEG."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("rendering frames needs Pillow", extra="media") from None
    middle, width = (hand, 0.5) if close else (np.array([0.5, 0.5]), 1.0)
    grid = (np.arange(SIDE) + 0.5) / SIDE - 0.5
    x, y = np.meshgrid(middle[0] + width * grid, middle[1] + width * grid)
    frame = np.full((SIDE, SIDE, 3), 235, np.uint8)
    for point, color, radius in ((target, (200, 40, 40), 0.07), (hand, (40, 60, 200), 0.05)):
        frame[(x - point[0]) ** 2 + (y - point[1]) ** 2 < radius**2] = color
    out = io.BytesIO()
    Image.fromarray(frame).save(out, "JPEG", quality=90)
    return out.getvalue()
