from __future__ import annotations

import io
import tarfile
from pathlib import Path

import orjson
import pytest

from feedmill.demo.corpus import Document
from feedmill.demo.pages import HEIGHT, WIDTH, page_lines, write_pages
from feedmill.storage import LocalStore

Image = pytest.importorskip("PIL.Image")

DOCUMENTS = [Document(f"d{i}", f"Title {i}", "some words here\n    an indented line\n" * (i + 1)) for i in range(7)]


def test_shards_hold_every_page_once_with_its_text(tmp_path: Path) -> None:
    write_pages(LocalStore(tmp_path), DOCUMENTS, shards=3)
    names: list[str] = []
    for shard in sorted(tmp_path.glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                names.append(member.name)
                assert (member.mtime, member.uid, member.gid, member.uname) == (0, 0, 0, "")
                file = tar.extractfile(member)
                assert file is not None
                data = file.read()
                if member.name.endswith(".jpg"):
                    with Image.open(io.BytesIO(data)) as page:
                        assert (page.format, page.mode, page.size) == ("JPEG", "RGB", (WIDTH, HEIGHT))
                        dark = sum(page.convert("L").histogram()[:128])
                        assert dark > 500, "there is writing on the page"
                else:
                    about, number = orjson.loads(data), int(member.name[5:11])
                    assert about["id"] == f"d{number}"
                    assert about["text"].startswith("some words here\n    an indented line")
    assert names == [f"page-{i:06d}.{part}" for i in range(7) for part in ("jpg", "json")]


def test_the_same_documents_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_pages(LocalStore(tmp_path / name), DOCUMENTS, shards=2)
    for shard in ("pages-000000.tar", "pages-000001.tar"):
        assert (tmp_path / "a" / shard).read_bytes() == (tmp_path / "b" / shard).read_bytes()


def test_lines_are_wrapped_and_fit_on_the_page() -> None:
    lines = page_lines("    " + "word " * 100 + "\n\nend\n" * 60)
    assert all(len(line) <= 74 for line in lines)
    assert lines[0].startswith("    word") and lines[1].startswith("    word")
    assert len(lines) == len(page_lines("x\n" * 500)) < 40
