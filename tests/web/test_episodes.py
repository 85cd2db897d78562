"""The episode of a robot's frame: player, frames, curves, and what a window covers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.robots import write_robot
from helpers.web_server import Site, serving

pytest.importorskip("av")


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("robots")
    write_robot(folder / "arm", lengths=(6, 20), width=10, cameras={"front": (16, 24)}, video=True)
    write_robot(folder / "still", lengths=(4,), cameras={"top": (8, 8)})
    with serving(folder / "arm", folder / "still") as found:
        yield found


def test_an_episode_is_shown_with_what_a_window_covers(arm: Site) -> None:
    page = arm.get("/arm/samples.json?at=20&window=-3:9").json
    episode = page["opened"]["episode"]
    assert (episode["number"], episode["frame"], episode["length"], episode["first"]) == (1, 14, 20, 6)
    window = episode["window"]
    assert (window["steps"], window["inside"], window["outside"], window["from"], window["to"]) == (13, 9, 4, 11, 19)
    assert window["x"] + window["width"] == 1000 and window["x"] < episode["here"] < 1000
    assert [column["name"] for column in episode["columns"]] == ["action", "observation.state"]
    assert episode["players"][0]["begin"] == 0.6 and episode["players"][0]["end"] == 2.6
    text = arm.get("/arm/samples?at=20&window=-3:9").text
    assert "#t=0.600,2.600" in text and 'class="band"' in text and "the first 8 of 10" in text
    assert (
        "13 steps: frames 11 to 19, 4 outside of the episode (padding)"
        in arm.get("/arm/samples?at=20&window=-3:9").words
    )
    beyond = arm.get("/arm/samples.json?at=20&window=50:60").json["opened"]["episode"]["window"]
    assert (beyond["inside"], beyond["width"]) == (0, 0)
    assert arm.get("/arm/samples?at=20&window=9:-3").status == 400
    still = arm.get("/still/samples.json?at=2").json["opened"]["episode"]
    assert still["players"] == [] and [one["at"] for one in still["strips"][0]["frames"]] == [0, 1, 2, 3]


def test_players_get_ranges_of_the_file(arm: Site) -> None:
    whole = arm.get("/arm/video?at=7&camera=front")
    assert whole.status == 206 and whole.headers["content-type"] == "video/mp4" and whole.body[4:8] == b"ftyp"
    size = len(whole.body)
    part = arm.get("/arm/video?at=7&camera=front", Range="bytes=10-19")
    assert part.body == whole.body[10:20] and part.headers["content-range"] == f"bytes 10-19/{size}"
    assert arm.get("/arm/video?at=7&camera=front", Range=f"bytes={size}-").status == 416
    assert (
        arm.get("/arm/video?at=7&camera=top").status == 404 and arm.get("/arm/video?at=99&camera=front").status == 404
    )
    assert arm.get("/still/video?at=0&camera=top").status == 404


def test_episodes_are_shown_as_episodes(arm: Site) -> None:
    data = arm.get("/arm/samples.json").json
    assert (data["layout"], data["episodes"], data["selected"]) == ("episodes", 2, 26)
    assert [(row["index"], row["episode"]["frames"], row["episode"]["seconds"]) for row in data["rows"]] == [
        (0, 6, 0.6),
        (6, 20, 2.0),
    ]
    assert not data["problems"] and "timestamp" not in {facet["name"] for facet in data["facets"]}
    assert "cannot be used" not in arm.get("/arm/samples").words
    opened = arm.get("/arm/samples.json?at=20").json
    assert (opened["opened"]["index"], opened["current"], opened["opened"]["previous"]) == (20, 6, 0)
    assert arm.get("/arm/samples.json?f.episode_length=20:").json["episodes"] == 1
