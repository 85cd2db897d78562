"""Findings by severity, the strip of shards, and samples that are unlike the others."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.web import health as health_view
from helpers.tars import write_tar
from helpers.web_server import Site, serving


def make(root: Path, shards: int = 6, per_shard: int = 5) -> Path:
    for shard in range(shards):
        files = []
        for n in range(shard * per_shard, (shard + 1) * per_shard):
            size = 50_000 if n == 7 else 600 + n
            files += [(f"k{n:03d}.txt", b"x" * size), (f"k{n:03d}.json", json.dumps({"n": n}).encode())]
        write_tar(root / f"s-{shard}.tar", files)
    fm.prepare(str(root), progress=False)
    return root


def checked(site: Site, query: str = "?check=1") -> dict[str, Any]:
    for _ in range(12_000):
        data: dict[str, Any] = site.get(f"/data/health.json{query}").json
        if data["state"] == "done":
            return data
        time.sleep(0.02)
    raise AssertionError("the check does not end")


def damage(root: Path) -> None:
    data = (root / "s-1.tar").read_bytes()
    (root / "s-1.tar").write_bytes(data[: len(data) // 2])
    (root / "s-3.tar").unlink()
    data = bytearray((root / "s-4.tar").read_bytes())
    data[600] ^= 1
    (root / "s-4.tar").write_bytes(data)


def test_severities_and_cells(tmp_path: Path) -> None:
    root = make(tmp_path / "data")
    damage(root)
    with serving(root) as site:
        data = checked(site)
        kinds = [cell["severity"] for cell in data["cells"]]
        assert kinds == [None, "damaged", None, "missing", "changed", None]
        assert [one["severity"] for one in data["findings"]] == sorted(
            (one["severity"] for one in data["findings"]), key=health_view.SEVERITIES.index
        )
        assert sum(data["counts"].values()) == data["found"] == len(fm.check(root, progress=False).findings)
        missing = checked(site, "?check=1&show=missing")["findings"]
        assert [(one["kind"], one["at"]) for one in missing] == [("missing-shard", 15)]
        page = site.get("/data/health?check=1")
        assert page.status == 200 and 'href="/data/samples?at=15#sample"' in page.text
        assert "s-3.tar" in site.get("/data/samples").words and site.get("/").status == 200
        assert site.get("/data/health?show=nothing").status == 400


def test_it_is_checked_again_only_when_asked(tmp_path: Path) -> None:
    root = make(tmp_path / "data", shards=2)
    with serving(root) as site:
        assert checked(site)["found"] == 0
        (root / "s-1.tar").unlink()
        assert checked(site)["found"] == 0
        again = checked(site, "?check=2")
        assert (again["checks"], again["found"]) == (2, 1)
        assert checked(site, "?check=2&decode=1")["decoded"]
        assert checked(site, "?check=2&decode=1")["checks"] == 3


def test_far_samples_are_counted_and_linked(tmp_path: Path) -> None:
    with serving(make(tmp_path / "data")) as site:
        data = checked(site)
        largest = next(row for row in data["outliers"] if row["what"] == "largest" and row["column"] == "bytes")
        assert (largest["index"], largest["far"], largest["key"]) == (7, 1, "k007")
        assert site.get(f"/data/samples.json?f.bytes={largest['limit']}").json["selected"] == 1
        smallest = next(row for row in data["outliers"] if row["what"] == "smallest" and row["column"] == "bytes")
        assert smallest["far"] == 0
        sizes = [cell["size"] for cell in data["cells"]]
        assert data["measure"] == "bytes" and sizes.index(max(sizes)) == 1 and data["cells"][1]["heat"] == 5


def test_a_group_shows_its_worst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_view, "MOST_CELLS", 2)
    root = make(tmp_path / "data")
    damage(root)
    with serving(root) as site:
        data = checked(site)
        assert [cell["severity"] for cell in data["cells"]] == ["damaged", "missing"] and data["grouped"]
        assert [cell["first"] for cell in data["cells"]] == [5, 15]
        assert "2 shards have findings" in data["cells"][1]["bad"]
        assert sum(cell["count"] for cell in data["cells"]) == 30


def test_documents_have_no_check_and_no_false_finding(site: Site) -> None:
    data = site.get("/documents/health.json?check=1").json
    assert data["state"] == "documents" and not data["findings"]
    assert "Documents have no check" in site.get("/documents/health").text
