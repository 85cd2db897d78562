"""The media table of a dataset, and the tokens of its samples by the rules of a processor."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.formats.mediatable import UNKNOWN, MediaTable
from feedmill.indexing.prepare import prepare
from feedmill.indexing.prepare_media import prepare_media
from feedmill.samples.media import MediaFilter
from feedmill.samples.token_rules.processor import read_rules
from helpers.tars import tar_bytes

Image = pytest.importorskip("PIL.Image")
GOLDEN = Path(__file__).parents[1] / "golden/token_rules"


def picture(width: int, height: int, orientation: int = 1, format: str = "JPEG") -> bytes:
    stream, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (width, height)).save(stream, format, exif=exif)
    return stream.getvalue()


def sound(samples: int, rate: int = 16_000) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(bytes(2 * samples))
    return stream.getvalue()


SHARDS = {
    "a.tar": {
        "one.jpg": picture(640, 480, 6),
        "one.txt": b"a photo that was turned",
        "two.left.png": picture(100, 90, format="PNG"),
        "two.right.jpg": picture(80, 70),
        "three.txt": b"no media",
    },
    "b.tar": {
        "four.jpg": b"\xff\xd8\xff broken",
        "four.png": picture(64, 64, format="PNG"),
        "five.wav": sound(32_000),
        "six.wav": sound(8_000, 8_000),
    },
}


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    pytest.importorskip("av")
    for name, members in SHARDS.items():
        (tmp_path / name).write_bytes(tar_bytes(list(members.items())))
    prepare(str(tmp_path), split_ratio=[1, 0, 0], progress=False)
    prepare_media(str(tmp_path), media=MediaFilter.parse(extension=True), progress=False)
    return str(tmp_path)


def rows(table: MediaTable) -> list[tuple[Any, ...]]:
    width, height = table.upright
    kinds = ("image", "video", "audio")
    return [
        (int(sample), table.parts[part], kinds[kind], *map(int, sizes))
        for sample, part, kind, *sizes in zip(
            table.sample, table.part, table.kind, width, height, table.samples, table.rate, strict=True
        )
    ]


def test_sizes_of_all_media(dataset: str) -> None:
    table = fm.open(dataset).media_table()
    assert table.offsets.tolist() == [0, 1, 3, 3, 5, 6, 7]
    none = (UNKNOWN, UNKNOWN)
    assert rows(table) == [
        (0, "jpg", "image", 480, 640, *none),
        (1, "left.png", "image", 100, 90, *none),
        (1, "right.jpg", "image", 80, 70, *none),
        (3, "jpg", "image", *none, *none),
        (3, "png", "image", 64, 64, *none),
        (4, "wav", "audio", *none, 32_000, 16_000),
        (5, "wav", "audio", *none, 8_000, 8_000),
    ]
    assert {reason: numbers.tolist() for reason, numbers in table.unknown().items()} == {"width and height": [3]}


def test_a_selection_and_a_part_of_the_media(dataset: str) -> None:
    opened = fm.open(dataset)
    table = opened.select([4, 1, 1]).media_table()
    whole = opened.media_table()
    assert [row[:2] for row in rows(table)] == [
        (0, "wav"),
        *[(1, "left.png"), (1, "right.jpg")],
        (2, "left.png"),
        (2, "right.jpg"),
    ]
    images = whole.where(whole.kind == 0)
    assert images.offsets.tolist() == [0, 1, 3, 3, 5, 5, 5] and len(images) == 5
    assert images.digest != whole.digest == opened.media_table().digest


def test_wrong_sizes_in_the_index_are_unknown(dataset: str) -> None:
    with sqlite3.connect(f"{dataset}/.nv-meta/index.sqlite") as connection:
        for key, metadata in (
            ("one.jpg", {"width": 0, "height": 480}),
            ("two.left.png", {"width": 10**12, "height": 5}),
        ):
            text = json.dumps({**metadata, "format": "PNG", "mode": "RGB"})
            connection.execute("UPDATE media_metadata SET metadata_json = ? WHERE entry_key = ?", (text, key))
    table = fm.open(dataset).media_table()
    assert table.unknown()["width and height"].tolist() == [0, 1, 3]


def test_without_media_metadata_there_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_bytes([("one.txt", b"text")]))
    prepare(str(tmp_path), split_ratio=[1, 0, 0], progress=False)
    with pytest.raises(
        fm.ConfigError, match=r"no media metadata.*Run 'feedmill edit prepare-media .* --media-by-extension'"
    ):
        fm.open(str(tmp_path)).media_table()
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "a.tar").write_bytes(tar_bytes([("one.txt", b"text")]))
    with pytest.raises(fm.ConfigError, match=r"no media metadata.*Run 'feedmill prepare .*plain --media-by-extension'"):
        fm.open(str(plain)).media_table()
    (tmp_path / "rows.jsonl").write_text('{"image": "a.png"}\n')
    with pytest.raises(fm.ConfigError, match=r"feedmill import FOLDER .*rows.jsonl SHARDS'.*prepare-media"):
        fm.open(str(tmp_path / "rows.jsonl")).media_table()
    with pytest.raises(fm.ConfigError, match="no media metadata"):
        fm.open(str(tmp_path / "rows.jsonl")).select([0]).media_table()


def test_damaged_metadata_is_named(dataset: str) -> None:
    with sqlite3.connect(f"{dataset}/.nv-meta/index.sqlite") as connection:
        connection.execute("UPDATE media_metadata SET metadata_json = '{' WHERE entry_key = 'one.jpg'")
    with pytest.raises(fm.DataError, match="the index cannot be read") as raised:
        fm.open(dataset).media_table()
    assert raised.value.record == "one.jpg"


def processor(name: str, folder: Path) -> str:
    folder.mkdir()
    for file, content in json.loads((GOLDEN / f"{name}.json").read_text())["files"].items():
        (folder / file).write_text(json.dumps(content))
    return str(folder)


def test_tokens_of_samples(dataset: str, tmp_path: Path) -> None:
    """The turned photo counts as upright: 336 pixels wide, not 448, in LLaVA-NeXT's tiles."""
    table = fm.open(dataset).media_table()
    made = read_rules(processor("llava_next", tmp_path / "processor"))
    counted = made.tokens(table)
    alone = made.rules["image"].tokens
    from feedmill.samples.token_rules.rule import Sizes

    want = alone(Sizes.of(height=[640, 90, 70], width=[480, 100, 80]), np.array([0, 1, 3])).tokens.tolist()
    stored = alone(Sizes.of(height=[480], width=[640]), np.array([0, 1])).tokens[0]
    assert counted.tokens.tolist() == [*want, 0, UNKNOWN, UNKNOWN, UNKNOWN] and want[0] != stored
    assert {reason: numbers.tolist() for reason, numbers in counted.refused.items()} == {
        "image: its width and height are unknown": [3],
        "LlavaNextProcessor has no rule for audio": [5, 6],
    }


def test_sound_of_another_rate_is_refused(dataset: str, tmp_path: Path) -> None:
    table = fm.open(dataset).media_table()
    sounds = table.where(table.kind == 2)
    counted = read_rules(processor("qwen2_audio", tmp_path / "processor")).tokens(sounds)
    assert counted.tokens.tolist() == [0, 0, 0, 0, 50, UNKNOWN]
    assert list(counted.refused) == ["its rate is unknown or not the 16,000 a second of Qwen2AudioProcessor"]


def letters(text: str) -> int:
    """As a tokenizer of bytes counts, with special tokens as one each, and one token before each text."""
    return words(text) + 1


def words(text: str) -> int:
    marks = re.findall(r"<\|[a-z_]+\|>", text)
    return len(marks) + len(re.sub(r"<\|[a-z_]+\|>", "", text))


TEXTS = [
    "see <|image_pad|>",
    "<|image_pad|> and\n<|image_pad|>",
    "no media",
    "<|image_pad|><|image_pad|>",
    "heard",
    "heard",
]


def test_lengths_of_samples(dataset: str, tmp_path: Path) -> None:
    table = fm.open(dataset).media_table()
    made = read_rules(processor("qwen2_vl", tmp_path / "processor"))
    images = table.where(table.kind == 0)
    found = made.lengths(TEXTS, images, letters, words)
    media = made.tokens(images, words).tokens.tolist()
    assert found.lengths.tolist() == [5 + media[0], 6 + media[1], 9, UNKNOWN, 6, 6]
    assert {reason: numbers.tolist() for reason, numbers in found.refused.items()} == {
        "image: its width and height are unknown": [3]
    }


def test_texts_that_do_not_fit_their_media(dataset: str, tmp_path: Path) -> None:
    """A text with a placeholder of its own, and one that lacks it, are named by sample."""
    table = fm.open(dataset).media_table()
    made = read_rules(processor("qwen2_vl", tmp_path / "processor"))
    texts = ["the text says <|image_pad|> <|image_pad|>", "<|image_pad|>", *TEXTS[2:]]
    found = made.lengths(texts, table.where(table.kind == 0), letters, words)
    assert found.lengths.tolist() == [UNKNOWN, UNKNOWN, 9, UNKNOWN, 6, 6]
    assert found.refused["the text has 2 of <|image_pad|>, and the sample has 1 of image"].tolist() == [0]
    assert found.refused["the text has 1 of <|image_pad|>, and the sample has 2 of image"].tolist() == [1]
    with pytest.raises(fm.DataError, match="the text has 1 of"):
        made.expanded("<|image_pad|>", {})
    for number in (5, 7):
        with pytest.raises(fm.ConfigError, match="6 samples need as many texts"):
            made.lengths((TEXTS * 2)[:number], table, letters, words)


def test_the_words_around_crops_count_with_their_text(tmp_path: Path) -> None:
    place = processor("gemma3_crops", tmp_path / "processor")
    rules = read_rules(place, {"do_pan_and_scan": True})
    assert rules.expanded("a <start_of_image>", {"image": [0]}).endswith("<end_of_image>\n\n")
    assert rules.expanded("a <start_of_image>", {"image": [2]}).count("<image_soft_token>") == 3
