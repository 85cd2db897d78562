"""Steps, losses and mixtures: the pages say what the plan says."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import yaml

import feedmill as fm
from feedmill.errors import DataError, NotFound
from feedmill.web.logs import parse_losses, read_losses
from feedmill.web.step import slots
from helpers.tokenizer_data import tokenizer_file
from helpers.web_data import TEXTS
from helpers.web_server import Site, serving


def blocks(data: dict) -> list[tuple[int, int, str, str]]:  # type: ignore[type-arg]
    return [
        (lane["rank"], row["position"], block["source"], block["label"])
        for lane in data["lanes"]
        for row in lane["rows"]
        for block in row["blocks"]
        if "padding" not in block
    ]


@pytest.mark.parametrize("recipe", ["mix.yaml", "packed.yaml"])
@pytest.mark.parametrize(("step", "batch", "world"), [(0, 16, 4), (3, 8, 2), (1, 4, 1)])
def test_a_step_is_that_of_trace(recipe: str, step: int, batch: int, world: int, root: Path, site: Site) -> None:
    data = site.get(f"/{recipe}/step.json?step={step}&batch={batch}&world={world}").json
    path = root / ("text/packed.yaml" if recipe == "packed.yaml" else recipe)
    wanted = fm.trace(str(path), step=step, global_batch=batch, world=world).facts["entries"]
    got = sorted(blocks(data))
    assert got == sorted((entry["rank"], entry["position"], entry["source"], entry["key"]) for entry in wanted)
    assert data["fingerprint"] == fm.Recipe.load(path).plan().fingerprint


def test_a_row_is_shown_as_its_text(site: Site) -> None:
    data = site.get("/packed.yaml/step.json?step=0&batch=4").json
    row = data["opened"]
    first = row["documents"][0]
    text = "".join(piece["text"] for piece in first["pieces"])
    number = int(first["key"])
    assert (
        first["span"][0] == 0
        and text.replace("<|endoftext|>", "") == TEXTS[number + (50 if first["source"] == "code" else 0)]
    )
    assert sum(piece["count"] for piece in first["pieces"]) == first["span"][1] - first["span"][0]
    assert (
        first["pieces"][-1]["special"] and sum(d["span"][1] - d["span"][0] for d in row["documents"]) <= data["width"]
    )


def test_sightings_lead_from_one_to_the_next(root: Path, site: Site) -> None:
    data = site.get("/packed.yaml/step.json?step=0&batch=4").json
    seen, entry = data["sightings"], data["opened"]["entry"]
    all_of_it = fm.trace(
        str(root / "text/packed.yaml"), document=entry["index"], source=entry["source"], global_batch=4
    )
    times = all_of_it.facts["found"][0]["seen"]
    assert seen["times"] == len(times) >= 4 and seen["previous"] is None
    following = site.get(f"/packed.yaml/step.json?step={seen['next']['step']}&row={seen['next']['row']}&batch=4").json
    assert following["opened"]["position"] == times[1]["position"]


def test_a_sample_of_a_mixture_has_its_parts_and_picture(site: Site) -> None:
    data = site.get("/mix.yaml/step.json?step=2").json
    row = next(b for b in blocks(data) if b[2] == "pages")
    page = site.get(f"/mix.yaml/step?step=2&row={row[1]}")
    assert page.status == 200 and "/mix.yaml/image?source=pages" in page.text
    index = site.get(f"/mix.yaml/step.json?step=2&row={row[1]}").json["opened"]["entry"]["index"]
    assert site.get(f"/mix.yaml/image?source=pages&at={index}&part=png").headers["content-type"] == "image/jpeg"


def test_the_loss_and_its_spike(site: Site) -> None:
    data = site.get("/mix.yaml/step.json?step=60").json["loss"]
    assert (data["spikes"], data["matched"], data["logged"], round(data["at"], 6)) == ([60], 250, 250, 5.0)
    assert "spike at 60" in site.get("/mix.yaml/step").words


def test_a_log_that_is_pasted(root: Path) -> None:
    with serving(root / "mix.yaml") as site:
        assert site.get("/mix.yaml/step.json").json["loss"] is None
        form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://{site.host}"}
        assert site.get("/mix.yaml/loss", "POST", b"log=nonsense", **form).status == 400
        answer = site.get("/mix.yaml/loss?step=4", "POST", b"log=step%2Closs%0A1%2C2.5%0A2%2C2.25", **form)
        assert (answer.status, answer.headers["location"]) == (303, "/mix.yaml/step?step=4")
        assert site.get("/mix.yaml/step.json?step=2").json["loss"]["at"] == 2.25


def _record(step: int, tag: str, loss: float) -> bytes:
    """One record of TensorBoard's file, without right checksums (which are not read)."""

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    value = field(1, tag.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", loss)
    event = bytes([1 << 3 | 1]) + struct.pack("<d", 0.0) + bytes([2 << 3, step]) + field(5, field(1, value))
    return struct.pack("<Q", len(event)) + b"\0" * 4 + event + b"\0" * 4


@pytest.mark.parametrize(
    ("data", "wanted", "skipped"),
    [
        (b"step,loss\n3,1.5\n1,2\n3,1.25\n", {1: 2.0, 3: 1.25}, 0),
        (b"iteration, time ,train/loss\n1,9,2\n2,9,nan\nx,9,1\n3\n", {1: 2.0}, 3),
        (b"0,4.0\n1,3.5\n", {0: 4.0, 1: 3.5}, 0),
        (
            b'{"step": 1, "loss": 2}\nbroken\n{"global_step": 2.0, "train_loss": "1.5"}\n{"step": 3}\n',
            {1: 2.0, 2: 1.5},
            2,
        ),
    ],
)
def test_logs(data: bytes, wanted: dict[int, float], skipped: int) -> None:
    found = parse_losses(data, "log")
    assert dict(zip(found.steps.tolist(), found.losses.tolist(), strict=True)) == wanted and found.skipped == skipped


def test_tensorboard_events(tmp_path: Path) -> None:
    begin = b"\x09" + b"\0" * 8 + b"\x1a\x0dbrain.Event:2"
    head = struct.pack("<Q", len(begin)) + b"\0" * 4 + begin + b"\0" * 4
    body = b"".join(_record(n, "train/loss", 4.0 - n) + _record(n, "lr", 0.5) for n in range(3))
    (tmp_path / "events.out.tfevents.1").write_bytes(head + body + _record(3, "train/loss", 1.0)[:-9])
    found = read_losses(str(tmp_path / "events.out.tfevents.1"))
    assert found.losses.tolist() == [4.0, 3.0, 2.0]


@pytest.mark.parametrize("data", [b"", b"a,b\n", b"step\n1\n", b"\xff\xfe\x00", b"{}", b"{" * 5000, b"\0" * 64])
def test_logs_without_losses(data: bytes) -> None:
    with pytest.raises(DataError):
        parse_losses(data, "log")


def test_spikes_are_found_in_noise() -> None:
    noise = np.random.default_rng(0).normal(0, 0.02, 2000)
    losses = 2 + 6 / (1 + np.arange(2000) / 50) + noise
    losses[[700, 1500, 1501, 1502]] += [2, 0.5, 1.5, 0.7]
    text = "step,loss\n" + "".join(f"{n},{loss}\n" for n, loss in enumerate(losses))
    assert {700, 1501} <= set(parse_losses(text.encode(), "x").spikes()) and len(
        parse_losses(text.encode(), "x").spikes()
    ) < 8


def test_a_mixture_is_that_of_plan(root: Path, site: Site) -> None:
    data = site.get("/mix.yaml/mixture.json").json
    facts = fm.plan(str(root / "mix.yaml")).facts
    assert [{k: v for k, v in row.items() if k not in ("slot", "spread")} for row in data["sources"]] == facts[
        "sources"
    ]
    assert (
        data["changed"] == []
        and data["differs_at"] is None
        and [line["name"] for line in data["chart"]["lines"]] == ["pages", "prose"]
    )


def test_other_weights_show_the_plan_of_another_recipe(root: Path, site: Site, tmp_path: Path) -> None:
    data = site.get("/mix.yaml/mixture.json?w.0=0.2&w.1=80%25").json
    changed = yaml.safe_load(data["yaml"])
    assert [member["weight"] for member in changed["blend"]] == [0.2, "80%"]
    other = fm.Recipe.parse(changed, base=root).plan()
    plan = fm.Recipe.load(root / "mix.yaml").plan()
    assert data["fingerprint"] == other.fingerprint != plan.fingerprint == data["fingerprint_before"]
    positions = np.arange(4000)
    one, two = plan.locate(positions), other.locate(positions)
    differs = np.flatnonzero((one.source != two.source) | (one.index != two.index))
    assert data["differs_at"] == differs[0]
    assert site.get("/mix.yaml/mixture.json?w.0=0.70&w.1=0.30").json["differs_at"] is None


@pytest.mark.parametrize("query", ["w.9=1", "w.0=x", "w.0.1=1", "w.0=-1", "w.0=0&w.1=0"])
def test_wrong_weights_are_an_error_of_the_page(query: str, site: Site) -> None:
    answer = site.get(f"/mix.yaml/mixture?{query}")
    assert answer.status == 400 and "cannot be shown" in answer.words


def test_more_than_ten_sources_share_one_color() -> None:
    assert slots([str(n) for n in range(12)]) == {str(n): n + 1 if n < 10 else 0 for n in range(12)}


def test_a_tokenizer_that_is_gone_is_said(root: Path, tmp_path: Path) -> None:
    data = json.loads((root / "text/prose.pbin.feedmill.json").read_text())
    for name in ("prose.pbin",):
        (tmp_path / name).write_bytes((root / "text" / name).read_bytes())
    data["tokenizer"] |= {"name": "gone/tokenizer", "path": "gone/tokenizer"}
    (tmp_path / "prose.pbin.feedmill.json").write_text(json.dumps(data))
    with serving(tmp_path / "prose.pbin") as site:
        page = site.get("/prose.pbin/samples?at=1")
        assert "was not found" in page.words and "--tokenizer" in page.words
    with serving(tmp_path / "prose.pbin", tokenizer=str(tokenizer_file("tok1k"))) as site:
        assert "document" in site.get("/prose.pbin/samples?at=1").words


def test_a_recipe_whose_data_is_gone(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("blend: [{path: nowhere, weight: 1}]\n")
    with pytest.raises(NotFound), serving(tmp_path / "r.yaml"):
        pass


def test_lanes_show_first_words_and_pictures(site: Site) -> None:
    data = site.get("/mix.yaml/step.json?step=7&world=4").json
    blocks = [block for lane in data["lanes"] for row in lane["rows"] for block in row["blocks"]]
    assert all(block["title"].startswith("document ") or block["title"] for block in blocks)
    assert {block["picture"] for block in blocks} == {"png", None}
    packed = site.get("/packed.yaml/step.json?batch=4&world=2").json
    words = [b.get("title") for lane in packed["lanes"] for row in lane["rows"] for b in row["blocks"] if "doc" in b]
    assert any(word and word.startswith("document") for word in words)
