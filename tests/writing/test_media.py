"""Media metadata of datasets that change: it is that of the media as they are now."""

from __future__ import annotations

import io
import sqlite3
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.errors import DataError
from feedmill.indexing.prepare import prepare
from feedmill.samples.media import MediaFilter
from feedmill.writing.add_parts import add_parts
from feedmill.writing.append import append
from helpers.tars import write_tar

Image = pytest.importorskip("PIL.Image")
EXTENSION = MediaFilter("EXTENSION")
SMALL, LARGE = (16, 12), (40, 30)


def picture(size: tuple[int, int]) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size).save(stream, "JPEG")
    return stream.getvalue()


def dataset(root: Path, size: tuple[int, int], media: MediaFilter | None = None) -> str:
    for shard in range(2):
        keys = range(2 * shard, 2 * shard + 2)
        files = [(f"{key}.{part}", data) for key in keys for part, data in (("jpg", picture(size)), ("txt", b"c"))]
        write_tar(root / f"{shard}.tar", files)
    prepare(str(root), media=media, progress=False)
    return str(root)


def pixels(url: str) -> list[int]:
    costs = fm.open(url).costs("pixels")
    assert costs is not None
    return [int(cost) for cost in costs]


@pytest.fixture
def small(tmp_path: Path) -> str:
    return dataset(tmp_path / "small", SMALL, EXTENSION)


@pytest.fixture
def large(tmp_path: Path) -> str:
    return dataset(tmp_path / "large", LARGE)


@pytest.mark.parametrize("parts", [["jpg"], None])
def test_overwritten_images_have_their_new_sizes(small: str, large: str, parts: list[str] | None) -> None:
    add_parts(small, large, parts=parts, overwrite=True, workers=1, progress=False)
    assert pixels(small) == [1200] * 4


def test_added_images_count(small: str) -> None:
    add_parts(small, _more, workers=1, progress=False)
    assert pixels(small) == [192 + 1200] * 4


def _more(samples: list[fm.Sample]) -> list[dict[str, bytes]]:
    return [{"2.jpg": picture(LARGE)} for _ in samples]


def test_appended_and_written_images_have_their_sizes(small: str, large: str) -> None:
    append(small, [large], prefix="n/", workers=1, progress=False)
    fm.write(small, [{"__key__": "w", "jpg": picture(LARGE)}], append=True)
    assert pixels(small) == [192] * 4 + [1200] * 5


def test_new_images_that_cannot_be_read_are_named_and_have_no_old_size(small: str, tmp_path: Path) -> None:
    write_tar(tmp_path / "bad/0.tar", [("0.jpg", b"no image"), ("1.jpg", picture(LARGE))])
    prepare(str(tmp_path / "bad"), progress=False)
    report = add_parts(small, str(tmp_path / "bad"), overwrite=True, on_error="skip", workers=1, progress=False)
    (warning,) = [line for line in report.warnings if "no media metadata" in line]
    assert "/small/0.tar '0.jpg'" in warning and pixels(small) == [0, 1200, 192, 192]
    more = append(small, [str(tmp_path / "bad")], prefix="n/", workers=1, progress=False)
    assert ["'n/0.jpg'" in line for line in more.warnings] == [True]


def test_indexed_shards_without_metadata_have_unknown_costs_until_prepare_reads_them(small: str) -> None:
    with sqlite3.connect(f"{small}/.nv-meta/index.sqlite") as connection:
        connection.execute("DELETE FROM media_metadata WHERE entry_key LIKE '2.%' OR entry_key LIKE '3.%'")
    connection.close()
    with pytest.raises(DataError, match=r"'sample 2': 'pixels' of this sample is not in the index"):
        pixels(small)
    assert prepare(small, progress=False).media == 4
    assert pixels(small) == [192] * 4
