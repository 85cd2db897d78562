"""Mixtures of robots: common names, rates, shapes and statistics, each compared with the plainest computation."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml
from typer.testing import CliRunner, Result

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import ConfigError, DataError, EmptyResult, NotFound
from feedmill.formats.lerobot.dataset import LeRobotDataset
from helpers.robots import Robot, windows_of, write_robot

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def saved(folder: Path, recipe: Mapping[str, Any], name: str = "recipe.yaml") -> fm.Recipe:
    (folder / name).write_text(yaml.safe_dump(dict(recipe)))
    return fm.Recipe.load(folder / name)


def brute(
    parts: list[tuple[npt.NDArray[Any], float]],
) -> dict[str, npt.NDArray[Any]]:
    """The statistics of sources with shares, by NumPy over all their vectors side by side; narrower ones first lack."""
    width = max(values.shape[1] for values, _ in parts)
    out: dict[str, list[float]] = {name: [] for name in ("min", "max", "mean", "std", *QUANTILES)}
    for at in range(width):
        having = [(values[:, at].astype(np.float64), share) for values, share in parts if values.shape[1] > at]
        whole = np.concatenate([values for values, _ in having])
        weights = np.concatenate([np.full(len(values), share / len(values)) for values, share in having])
        mean = np.average(whole, weights=weights)
        out["min"].append(whole.min())
        out["max"].append(whole.max())
        out["mean"].append(mean)
        out["std"].append(np.sqrt(np.average((whole - mean) ** 2, weights=weights)))
        for name, q in QUANTILES.items():
            out[name].append(np.quantile(whole, q, weights=weights, method="inverted_cdf"))
    return {name: np.asarray(values) for name, values in out.items()}


def assert_like(found: Mapping[str, Any], wanted: Mapping[str, npt.NDArray[Any]], *, rtol: float = 1e-6) -> None:
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=rtol, atol=1e-6, err_msg=name)


def two(folder: Path) -> tuple[Robot, Robot]:
    one = write_robot(folder / "a", fps=10, width=3, dimensions=["x", "y", "grip"])
    other = write_robot(folder / "b", fps=30, width=5, state=5, action="actions", lengths=(20, 9, 31), seed=1, scale=3)
    return one, other


MIX = {
    "seed": 3,
    "episodes": {"fps": 10, "windows": {"action": [0, 7]}, "sizes": {"action": 6}, "normalize": {"action": "quantile"}},
    "blend": [
        {"path": "a", "weight": 0.7},
        {"path": "b", "weight": 0.3, "episodes": {"rename": {"actions": "action"}}},
    ],
}


def test_a_mixture_has_one_shape_one_rate_and_the_statistics_of_what_it_draws(tmp_path: Path) -> None:
    robots = two(tmp_path)
    recipe = saved(tmp_path, MIX)
    with pytest.raises(
        ConfigError, match=r"there are no statistics of 'action' of the source 'a'.*feedmill documents stat"
    ):
        recipe.plan()
    report = recipe.statistics(progress=False)
    parts = []
    for robot, column, share in zip(robots, ("action", "actions"), (0.7, 0.3), strict=True):
        values, pads = windows_of(robot, column, range(8), 10)
        parts.append((values[~pads], share))
    assert_like(report.features["action"], brute(parts))
    assert report.features["action"]["count"] == [sum(len(values) for values, _ in parts)]
    assert json.loads((tmp_path / "recipe.yaml.stats/stats.json").read_text())["action"] == report.features["action"]
    low, high = (np.asarray(report.features["action"][name]) for name in ("q01", "q99"))
    plan = recipe.plan()
    for source, (robot, column) in enumerate(zip(robots, ("action", "actions"), strict=True)):
        dataset = plan.sources[source]
        values, pads = windows_of(robot, column, range(8), 10)
        width = values.shape[-1]
        batch = dataset.read(range(len(dataset)))
        wanted = 2 * (values - low[:width]) / (high - low)[:width] - 1
        found = np.stack([sample["action"] for sample in batch])
        np.testing.assert_allclose(found[..., :width], wanted, atol=2e-6)
        assert not found[..., width:].any()
        assert np.array_equal(np.stack([sample["action_is_pad"] for sample in batch]), pads)
        assert batch[0]["action_dim_is_pad"].tolist() == [False] * width + [True] * (6 - width)
        back = dataset.restored("action", found)
        np.testing.assert_allclose(back, values, atol=1e-5)
    again = pickle.loads(pickle.dumps(plan.sources[1].opened_as(subflavors={"a": 1})))
    assert again.fingerprint() == plan.sources[1].fingerprint() and again.subflavors == {"a": 1}
    assert np.array_equal(again[7]["action"], plan.sources[1][7]["action"])
    loader = fm.Loader(plan, 10, workers=2)
    shapes = {batch["action"].shape for batch in islice(loader, 5)}
    loader.close()
    assert shapes == {(10, 8, 6)}


def test_a_source_more_costs_its_own_size_and_weights_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two(tmp_path)
    recipe = {**MIX, "blend": MIX["blend"][:1]}
    first = saved(tmp_path, recipe).statistics(progress=False)
    assert (first.computed, first.known) == (1, 0)
    read: list[str] = []
    columns_of = LeRobotDataset.columns_of

    def counted(self: LeRobotDataset, file: int, names: Any) -> Any:
        read.append(Path(self.url).name)
        return columns_of(self, file, names)

    monkeypatch.setattr(LeRobotDataset, "columns_of", counted)
    second = saved(tmp_path, MIX).statistics(progress=False)
    assert (second.computed, second.known) == (1, 1) and set(read) == {"b"}
    before = (tmp_path / "recipe.yaml.stats/stats.json").read_bytes()
    assert saved(tmp_path, MIX).statistics(progress=False).computed == 0
    assert (tmp_path / "recipe.yaml.stats/stats.json").read_bytes() == before
    weights = {**MIX, "blend": [{**member, "weight": 1} for member in MIX["blend"]]}
    third = saved(tmp_path, weights).statistics(progress=False)
    assert third.computed == 0 and third.features["action"]["mean"] != second.features["action"]["mean"]
    (next((tmp_path / "recipe.yaml.stats").glob("*.npz"))).write_bytes(b"PK\x03\x04 cut short")
    assert saved(tmp_path, MIX).statistics(progress=False).computed == 1


@pytest.mark.parametrize("rate", [10, 15, 30, 7.5])
def test_steps_lie_in_time(tmp_path: Path, rate: float) -> None:
    robot = write_robot(tmp_path / "r", fps=15, lengths=(11, 4))
    steps = range(-3, 6)
    dataset = fm.open(tmp_path / "r", episodes={"fps": rate, "windows": {"action": [-3, 5]}})
    values, pads = windows_of(robot, "action", steps, rate)
    batch = dataset.read(range(15))
    assert np.array_equal(np.stack([sample["action"] for sample in batch]), values)
    assert np.array_equal(np.stack([sample["action_is_pad"] for sample in batch]), pads)
    linear = fm.open(tmp_path / "r", episodes={"fps": rate, "interpolate": "linear", "windows": {"action": [-3, 5]}})
    for index, sample in enumerate(linear.read(range(15))):
        episode, frame = (0, index) if index < 11 else (1, index - 11)
        array = robot.columns["action"][episode]
        at = np.clip(frame + np.asarray(steps) * 15 / rate, 0, len(array) - 1)
        wanted = np.stack([np.interp(at, np.arange(len(array)), column) for column in array.T], -1)
        np.testing.assert_allclose(sample["action"], wanted, atol=1e-6)
        assert np.array_equal(sample["action_is_pad"], batch[index]["action_is_pad"])


def test_seconds_are_steps_of_the_rate(tmp_path: Path) -> None:
    robot = write_robot(tmp_path / "r", fps=30)
    dataset = fm.open(tmp_path / "r", episodes={"fps": 10, "windows": {"action": [-0.1, 0.0, 0.2]}})
    assert np.array_equal(dataset[4]["action"], robot.columns["action"][0][[1, 4, 6]])
    with pytest.raises(ConfigError, match=r"0\.05 s lies between two frames, which are 1/10 s apart"):
        fm.open(tmp_path / "r", episodes={"fps": 10, "windows": {"action": [0.05]}})


def test_weights_count_hours_and_episodes(tmp_path: Path) -> None:
    write_robot(tmp_path / "a", fps=10, lengths=(10,) * 4)
    write_robot(tmp_path / "b", fps=30, lengths=(40, 20), seed=1)
    for unit, wanted in (("hours", (0.25, 0.75)), ("episodes", (0.25, 0.75)), ("samples", (0.5, 0.5))):
        recipe = {"unit": unit, "samples": 400, "blend": [{"path": "a"}, {"path": "b"}]}
        report = saved(tmp_path, recipe).plan().report()
        assert tuple(source.drawn / 400 for source in report.sources if source.drawn is not None) == wanted
    subset = {"unit": "episodes", "samples": 300, "blend": [{"path": "a", "subset": [5, 15]}, {"path": "b"}]}
    report = saved(tmp_path, subset).plan().report()  # 2 episodes of 5 frames, 2 of 30
    assert [source.drawn for source in report.sources] == [43, 257]
    (tmp_path / "docs.jsonl").write_text('{"text": "x"}\n' * 5)
    with pytest.raises(ConfigError, match=r"docs.jsonl has no robot episodes, so its hours are unknown"):
        saved(tmp_path, {"unit": "hours", "blend": [{"path": "a"}, {"path": "docs.jsonl"}]}).plan()


def test_frames_and_episodes_are_dropped_by_columns(tmp_path: Path) -> None:
    moving = [n % 3 != 0 for n in range(24)]
    robot = write_robot(
        tmp_path / "r",
        extra={"moving": moving, "grade": [float(n) for n in range(24)], "by": ["ann", "bob"] * 12},
        episodes={"success": [True, False, True], "operator": ["x", "y", "z"]},
    )
    windows = {"windows": {"action": [0, 2]}}

    def kept(where: Mapping[str, Any]) -> list[int]:
        dataset = fm.open(tmp_path / "r", episodes={**windows, "where": where})
        assert len(dataset) == len(dataset.read(range(len(dataset))))
        return [sample["index"] for sample in dataset]

    assert kept({"moving": True}) == [n for n in range(24) if n % 3]
    assert kept({"success": True}) == [*range(7), *range(19, 24)]
    assert kept({"operator": {"not": ["x", "z"]}}) == list(range(7, 19))
    assert kept({"grade": {"min": 3, "max": 8}, "by": "ann"}) == [4, 6, 8]
    assert kept({"episode_index": [0, 2], "task": "move"}) == [*range(7), *range(19, 24)]
    dataset = fm.open(tmp_path / "r", episodes={**windows, "where": {"moving": True}})
    whole = fm.open(tmp_path / "r", windows={"action": [0, 2]})
    assert np.array_equal(dataset[0]["action"], whole[1]["action"]), "windows reach over dropped frames"
    assert dataset.find("000000/000002") == 1 and dataset.locate(1).key == "000000/000002"
    assert dataset.describe()["selection"] == "where moving: 16 of 24 frames"
    with pytest.raises(NotFound):
        dataset.find("000000/000000")
    values, pads = windows_of(robot, "action", range(3))
    chosen = np.asarray(moving)
    found = dataset.summary("action")  # type: ignore[attr-defined]
    np.testing.assert_allclose(found.mean, values[chosen][~pads[chosen]].mean(0), atol=1e-6)
    with pytest.raises(EmptyResult):
        kept({"by": "carl"})
    with pytest.raises(ConfigError, match=r"there is no column or camera 'movin' .did you mean 'moving'"):
        kept({"movin": True})
    with pytest.raises(ConfigError, match=r"'action' has several values a frame"):
        kept({"action": 1})


def rotated(rng: np.random.Generator, count: int) -> npt.NDArray[np.float32]:
    return rng.normal(size=(count, 7)).astype(np.float32)


def test_relative_poses_of_six_numbers_and_their_inverse(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    arrays = {"action": [rotated(rng, n) for n in (7, 12)], "observation.state": [rotated(rng, n) for n in (7, 12)]}
    write_robot(tmp_path / "r", lengths=(7, 12), values=arrays)
    settings = {
        "windows": {"action": [0, 3]},
        "poses": {"action": {"position": 0, "rotation": 3, "form": "euler"}},
        "relative": {"action": {"to": "observation.state", "keep": [6]}},
        "normalize": {"action": "mean_std"},
    }
    recipe = saved(tmp_path, {"source": "r", "episodes": settings})
    report = recipe.statistics(progress=False)
    wanted, absolute, states = [], [], []
    for actions, state in zip(arrays["action"], arrays["observation.state"], strict=True):
        for t in range(len(actions)):
            for step in range(4):
                if t + step < len(actions):
                    wanted.append(_seen(actions[t + step], state[t]))
                    absolute.append(actions[t + step])
                    states.append(state[t])
    assert_like(report.features["action"], brute([(np.asarray(wanted), 1.0)]), rtol=1e-5)
    dataset = recipe.plan().sources[0]
    values = np.concatenate([sample["action"][~sample["action_is_pad"]] for sample in dataset.read(range(19))])
    found = dataset.restored("action", values, np.asarray(states))
    np.testing.assert_allclose(found[:, [0, 1, 2, 6]], np.asarray(absolute)[:, [0, 1, 2, 6]], atol=1e-5)
    for one, other in zip(found, absolute, strict=True):
        np.testing.assert_allclose(_euler(one[3:6]), _euler(other[3:6]), atol=1e-5)
    with pytest.raises(ConfigError, match=r"Pass its value as 'reference'"):
        dataset.restored("action", values)


def _euler(angles: npt.NDArray[Any]) -> npt.NDArray[Any]:
    (cr, cp, cy), (sr, sp, sy) = np.cos(np.float64(angles)), np.sin(np.float64(angles))
    x = np.array([[1, 0, 0], [0, cr, -sr], [0, sr, cr]])
    y = np.array([[cp, 0, sp], [0, 1, 0], [-sp, 0, cp]])
    z = np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
    return z @ y @ x


def _seen(action: npt.NDArray[Any], state: npt.NDArray[Any]) -> npt.NDArray[Any]:
    own = _euler(state[3:6]).T
    at = own @ (np.float64(action[:3]) - state[:3])
    return np.concatenate([at, (own @ _euler(action[3:6]))[:2].ravel(), [action[6]]])


@pytest.mark.parametrize("form", ["quaternion", "axis_angle", "6d"])
def test_rotations_alone_become_six_numbers(tmp_path: Path, form: str) -> None:
    width = {"quaternion": 4, "axis_angle": 3, "6d": 6}[form]
    write_robot(tmp_path / "r", width=2 + 2 * width)
    turns = [{"rotation": 1, "form": form}, {"rotation": 2 + width, "form": form}]
    dataset = fm.open(tmp_path / "r", episodes={"poses": {"action": turns}})
    plain = fm.open(tmp_path / "r")
    found = np.stack([sample["action"] for sample in dataset])
    assert found.shape == (24, 14)
    stored = np.stack([sample["action"] for sample in plain])
    assert np.array_equal(found[:, [0, 7]], stored[:, [0, 1 + width]])
    back = dataset.restored("action", found)  # type: ignore[attr-defined]
    again = np.stack([dataset.features["action"].seen(row.astype(np.float64), None) for row in back])  # type: ignore[attr-defined]
    np.testing.assert_allclose(again, found, atol=1e-5)


@pytest.mark.parametrize("form", ["quaternion", "euler"])
def test_rotations_between_frames_turn_on_the_shortest_way(tmp_path: Path, form: str) -> None:
    angles = 3.0 + 0.1 * np.arange(6)  # past half a turn, where angles jump, and quaternions may change their sign
    turned = np.zeros((6, 4 if form == "quaternion" else 3))
    if form == "quaternion":
        turned[:, 2:] = (
            np.stack((np.sin(angles / 2), np.cos(angles / 2)), 1) * np.where(np.arange(6) % 2, -1, 1)[:, None]
        )
    else:
        turned[:, 2] = (angles + np.pi) % (2 * np.pi) - np.pi
    write_robot(tmp_path / "r", lengths=(6,), values={"turn": [turned.astype(np.float32)]})
    wanted = {"fps": 20, "interpolate": "linear", "windows": {"turn": [0, 7]}}
    six = fm.open(tmp_path / "r", episodes={**wanted, "poses": {"turn": {"rotation": 0, "form": form}}})[0]["turn"]
    expected = 3.0 + 0.05 * np.arange(8)
    np.testing.assert_allclose(six[:, [0, 3]], np.stack((np.cos(expected), np.sin(expected)), 1), atol=1e-5)


def test_all_rates_give_one_type(tmp_path: Path) -> None:
    for rate in (10, 20):
        write_robot(tmp_path / str(rate), fps=rate, extra={"force": [0.5 * n for n in range(24)]})
        wanted = {"fps": 10, "interpolate": "linear", "windows": {"force": [0.0, 0.1]}}
        assert fm.open(tmp_path / str(rate), episodes=wanted)[0]["force"].dtype == np.float32


def test_large_numbers_are_normalized_in_full(tmp_path: Path) -> None:
    times = 1.7e9 + 0.5 * np.arange(24)  # float32 has steps of 128 there
    write_robot(tmp_path / "r", extra={"time": times.tolist()})
    recipe = saved(tmp_path, {"source": "r", "episodes": {"normalize": {"time": "mean_std"}}})
    recipe.statistics()
    found = np.asarray([sample["time"] for sample in recipe.plan().sources[0]])
    np.testing.assert_allclose(found, (times - times.mean()) / times.std(), atol=1e-6)


def test_relative_without_poses_is_a_difference(tmp_path: Path) -> None:
    robot = write_robot(tmp_path / "r")
    dataset = fm.open(
        tmp_path / "r", episodes={"windows": {"action": [0, 1]}, "relative": {"action": "observation.state"}}
    )
    actions, states = robot.columns["action"][0], robot.columns["observation.state"][0]
    np.testing.assert_allclose(dataset[2]["action"], actions[2:4] - states[2], atol=1e-6)


@pytest.mark.parametrize(
    ("method", "names"), [("mean_std", ("mean", "std")), ("min_max", ("min", "max")), ("quantile10", ("q10", "q90"))]
)
def test_statistics_of_the_source_and_constant_dimensions(tmp_path: Path, method: str, names: tuple[str, str]) -> None:
    rng = np.random.default_rng(0)
    arrays = [np.concatenate([rng.normal(size=(n, 2)), np.full((n, 1), 4.0)], 1).astype(np.float32) for n in (7, 12, 5)]
    robot = write_robot(tmp_path / "r", values={"action": arrays}, dimensions=["x", "y", "z"])
    whole = np.concatenate(robot.columns["action"]).astype(np.float64)
    stats = {name: values.tolist() for name, values in brute([(whole, 1.0)]).items()}
    (tmp_path / "r/meta/stats.json").write_text(json.dumps({"action": {**stats, "count": [24]}}))
    settings = {"normalize": {"action": method}, "statistics": "dataset"}
    plan = saved(tmp_path, {"source": {"path": "r"}, "episodes": settings}).plan()
    found = np.stack([sample["action"] for sample in plan.sources[0]])
    low, high = (np.asarray(stats[name]) for name in names)
    center, scale = (low, high) if method == "mean_std" else ((low + high) / 2, (high - low) / 2)
    np.testing.assert_allclose(found[:, :2], ((whole - center) / np.maximum(scale, 1e-8))[:, :2], atol=1e-5)
    assert not found[:, 2].any(), "a constant is centered and not scaled"
    assert plan.sources[0].fingerprint() != fm.open(tmp_path / "r").fingerprint()
    state = fm.Loader(plan, 4).state_dict()
    other = saved(tmp_path, {"source": {"path": "r"}, "episodes": {**settings, "normalize": {}}}).plan()
    with pytest.raises(ConfigError, match=r"not the one that this state was saved with"):
        fm.Loader(other, 4).load_state_dict(state)


def test_a_source_that_is_never_drawn_is_normalized_by_its_own(tmp_path: Path) -> None:
    two(tmp_path)
    blend = [{"path": "a", "weight": 0}, {**MIX["blend"][1], "weight": 1}]
    recipe = saved(tmp_path, {**MIX, "samples": 100, "blend": blend})
    report = recipe.statistics()
    assert report.computed == 2 and report.sources == {"action": ["b"]} and len(report.features["action"]["q01"]) == 5
    assert recipe.plan().sources[0][0]["action"].shape == (8, 6)


def test_statistics_of_another_robot_are_refused(tmp_path: Path) -> None:
    two(tmp_path)
    write_robot(tmp_path / "c", width=3, dimensions=["x", "z", "grip"], seed=4)
    base = {"windows": {"action": [0, 3]}, "normalize": {"action": "quantile"}}
    saved(tmp_path, {"source": "a", "episodes": base}, "a.yaml").statistics(progress=False)

    def plan(path: str, **more: Any) -> fm.Plan:
        own = {"rename": {"actions": "action"}} if path == "b" else {}
        stats = {"statistics": "a.yaml.stats/stats.json"}
        return saved(tmp_path, {"source": path, "episodes": {**base, **stats, **own, **more}}, "x.yaml").plan()

    plan("a")
    with pytest.raises(ConfigError, match=r"have 3 dimensions, the data 5: they are of another robot"):
        plan("b")
    with pytest.raises(ConfigError, match=r"of another robot: its dimensions are \['x', 'y', 'grip'\], here"):
        plan("c")
    with pytest.raises(ConfigError, match=r"of other values: relative is None there"):
        plan("a", relative={"action": "observation.state"})
    with pytest.raises(ConfigError, match=r"there are no statistics of 'observation.state': these are of action"):
        plan("a", normalize={"observation.state": "min_max"})
    with pytest.raises(
        NotFound, match=r"no such file with statistics for the source 'a'\. Set 'statistics' to mixture"
    ):
        plan("a", statistics="dataset")
    (tmp_path / "odd.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"the file is not a stats.json"):
        plan("a", statistics="odd.json")


def test_statistics_of_each_source_alone(tmp_path: Path) -> None:
    robots = two(tmp_path)
    recipe = saved(tmp_path, {**MIX, "episodes": {**MIX["episodes"], "statistics": "source"}})
    recipe.statistics(progress=False)
    for source, robot, column in zip(recipe.plan().sources, robots, ("action", "actions"), strict=True):
        values, pads = windows_of(robot, column, range(8), 10)
        wanted = brute([(values[~pads], 1.0)])
        found = np.stack([sample["action"] for sample in source])[..., : values.shape[-1]]
        np.testing.assert_allclose(found, 2 * (values - wanted["q01"]) / (wanted["q99"] - wanted["q01"]) - 1, atol=2e-6)


def test_cameras_get_one_size_and_missing_ones_are_padding(tmp_path: Path) -> None:
    write_robot(tmp_path / "a", cameras={"observation.images.top": (12, 16)})
    write_robot(tmp_path / "b", cameras={"cam": (8, 8), "side": (8, 8)}, video=True)
    write_robot(tmp_path / "c")
    settings = {
        "windows": {"top": [-1, 0]},
        "sizes": {"top": [10, 12], "front": [4, 4], "force": 3},
        "parts": ["top", "front", "force", "action", "task"],
    }
    recipe = {
        "samples": 60,
        "episodes": settings,
        "blend": [
            {"path": "a", "episodes": {"rename": {"observation.images.top": "top"}}},
            {"path": "b", "episodes": {"rename": {"cam": "top", "side": "front"}}},
            {"path": "c"},
        ],
    }
    recipe["blend"][2]["episodes"] = {"windows": {"top": [-1, 0]}}  # type: ignore[index]
    plan = saved(tmp_path, recipe).plan()
    batch = next(iter(fm.Loader(plan, 12)))
    assert batch["top"].shape == (12, 2, 10, 12, 3) and batch["front"].shape == (12, 4, 4, 3)
    assert batch["force"].shape == (12, 3) and batch["force_dim_is_pad"].all() and batch["force_is_pad"].all()
    assert set(batch) == {
        *("__key__", "action", "task", "top", "top_is_pad", "front", "front_is_pad"),
        *("force", "force_is_pad", "force_dim_is_pad"),
    }
    recipe["decode"] = "rgb"
    units = next(iter(fm.Loader(saved(tmp_path, recipe).plan(), 12)))
    for camera in ("top", "front"):
        assert np.array_equal(units[camera], batch[camera] / np.float32(255)) and units[camera].dtype == np.float32
    missing = ~batch["top"].any(axis=(1, 2, 3, 4))
    assert 0 < missing.sum() < 12 and batch["top_is_pad"][missing].all() and not batch["top_is_pad"][~missing].all()


def test_language_at_a_frame(tmp_path: Path) -> None:
    lasting = [
        {"role": "assistant", "content": "reach", "style": "subtask", "timestamp": 0.0, "camera": None},
        {"role": "assistant", "content": "grasp", "style": "subtask", "timestamp": 0.3, "camera": None},
    ]
    question = [{"role": "user", "content": "where?", "style": "vqa", "camera": "top"}]
    answer = [{"role": "assistant", "content": "there", "style": "vqa", "camera": "top"}]
    rows = [(lasting, question + answer if n % 7 == 2 else []) for n in range(7)]
    write_robot(tmp_path / "r", lengths=(7,), language=rows)
    said = {"subtask": {"style": "subtask"}, "question": {"style": "vqa", "role": "user"}}
    dataset = fm.open(tmp_path / "r", episodes={"language": said})
    assert [sample["subtask"] for sample in dataset] == ["reach"] * 3 + ["grasp"] * 4
    assert [sample["question"] for sample in dataset] == [None, None, "where?", None, None, None, None]
    assert "language_persistent" not in dataset[0] and dataset[0]["task"] == "move"
    assert fm.open(tmp_path / "r")[2]["language_events"][0]["content"] == "where?"
    with pytest.raises(DataError, match=r"2 texts of style 'vqa' hold at once"):
        fm.open(tmp_path / "r", episodes={"language": ["vqa"]})[2]
    write_robot(tmp_path / "plain")
    with pytest.raises(ConfigError, match=r"the dataset has no language_persistent"):
        fm.open(tmp_path / "plain", episodes={"language": ["subtask"]})


def test_a_text_holds_from_its_own_frame(tmp_path: Path) -> None:
    begins = [n / 30 for n in (0, 1000, 1001, 1003)]  # not whole in float32, as the times of frames are
    texts = [{"role": "user", "content": str(n), "style": "plan", "timestamp": t, "camera": None}
             for n, t in enumerate(begins)]  # fmt: skip
    write_robot(tmp_path / "r", fps=30, lengths=(1005,), language=[(texts, [])] * 1005)
    dataset = fm.open(tmp_path / "r", episodes={"language": ["plan"]})
    assert [dataset[n]["plan"] for n in range(999, 1005)] == ["0", "1", "2", "2", "3", "3"]


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ({"rename": {"actions": "action"}}, "rename: there is no column or camera 'actions' .did you mean 'action'"),
        ({"rename": {"observation.state": "action"}}, "'action' and 'observation.state' would both be 'action'"),
        ({"sizes": {"action": 2}}, "sizes: action has 3 dimensions, more than 2"),
        ({"sizes": {"top": 3}}, "'top' is a camera: expected a column of numbers"),
        ({"normalize": {"task": "quantile"}}, "'task' is text: expected a column of numbers"),
        ({"normalize": {"action": "z"}}, "normalize: action: unknown method 'z'"),
        ({"poses": {"action": {"rotation": 1, "form": "euler"}}}, "are not among the 3 of the feature"),
        ({"poses": {"action": {"rotation": 1, "form": "roll"}}}, "unknown form 'roll'"),
        ({"poses": {"action": {"turn": 1}}}, "episodes: .*unexpected keyword argument 'turn'"),
        ({"relative": {"action": "state"}}, "there is no column or camera 'state'"),
        ({"relative": {"action": {"to": "observation.state", "keep": [3]}}}, "keep is \\[3\\]"),
        ({"fps": 0}, "fps is 0"),
        ({"rate": 20}, "20 steps a second were given, and the data say 10"),
        ({"sizes": {"top": [2, 2]}, "normalize": {"top": "quantile"}}, "Remove 'top' from 'normalize'"),
        ({"where": {"acton": 1}}, "where: .*'acton' .did you mean 'action'.*, task"),
        ({"interpolate": "cubic"}, "unknown interpolation 'cubic'"),
        ({"parts": ["acton"]}, "parts: there is no column or camera 'acton' .did you mean 'action'"),
        ({"widow": {}}, "unknown option 'widow'"),
        ({"windows": {"action": 16}}, "16 is not a window"),
        ({"windows": "action"}, "windows is 'action': expected a mapping"),
        ({"parts": "action"}, "parts is 'action': expected a list"),
        ({"fps": "10"}, "fps is '10': expected a number"),
        ({"sizes": {"top": [4]}}, "sizes: top is \\[4\\]"),
        ({"sizes": {"action": [4, 4]}}, "sizes: action is not a camera"),
        ({"poses": {"action": {"rotation": 0.0, "form": "euler"}}}, "poses: action: rotation and position"),
        ({"relative": {"action": {"to": "observation.state", "keep": 1}}}, "keep is 1: expected a list"),
        ({"rename": {"timestamp": "action_is_pad"}, "sizes": {"action": 4}}, "the mask 'action_is_pad' would hide"),
        ({"where": {"timestamp": {"min": "0"}}}, "where: timestamp: min is '0': expected a number"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, episodes: dict[str, Any], message: str) -> None:
    write_robot(tmp_path / "r", cameras={"top": (4, 4)})
    with pytest.raises(ConfigError, match=message):
        fm.open(tmp_path / "r", episodes=episodes)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("source: {path: r, windows: {action: 16}}", "action: 16 is not a window: expected a list"),
        ("source: {path: r, windows: {action: [0, 1]}, episodes: {windows: {action: [0, 1]}}}", "windows.* once"),
        ("source: r\nepisodes: {fps: fast}", "episodes.fps: input should be a valid number, found 'fast'$"),
        ("source: r\nepisodes: {sizes: {top: [4, 4, 3]}}", r"episodes.sizes.top: tuple .*, found .4, 4, 3.$"),
        ("source: r\nepisodes: {where: {idle: {mn: 3}}}", "unknown key 'mn' .did you mean 'min'"),
        ("source: r\nepisodes: [fps]", "episodes: expected a mapping, found"),
        ("source: r\nepisodes: {sizes: {acton: 3}}", "no source has a column or camera 'acton' .did you mean 'action'"),
        ("source: {path: r, episodes: {fps: null}}\nepisodes: {fps: 5}", None),
        ("source: r\nepisodes: {sizes: {wrist: [2, 2]}, parts: [action, wrist]}", None),
        ("source: r\nepisodes: {normalize: {action: z}}", "normalize"),
        ("source: docs.jsonl\nepisodes: {fps: 5}", None),
        ("source: {path: docs.jsonl, episodes: {fps: 5}}", "samples of episodes are cut from robot episodes"),
    ],
)
def test_recipes_that_do_not_fit(tmp_path: Path, recipe: str, message: str | None) -> None:
    write_robot(tmp_path / "r")
    (tmp_path / "docs.jsonl").write_text('{"text": "x"}\n' * 5)
    (tmp_path / "recipe.yaml").write_text(recipe)
    if message is None:  # the recipe's 'episodes' are for its robots
        fm.Recipe.load(tmp_path / "recipe.yaml").plan()
        return
    with pytest.raises(ConfigError, match=message):
        fm.Recipe.load(tmp_path / "recipe.yaml").plan()


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    arrays = [np.zeros((n, 3), np.float32) for n in (7, 12, 5)]
    arrays[1][3, 1] = np.nan
    write_robot(tmp_path / "r", values={"action": arrays})
    recipe = saved(tmp_path, {"source": "r", "episodes": {"normalize": {"action": "mean_std"}}})
    with pytest.raises(DataError, match=r"000001/000003.*'action' has 1 values that are not finite"):
        recipe.statistics(progress=False)


def test_twenty_robots_mixed_exactly_and_resumed_on_other_ranks(tmp_path: Path) -> None:
    rng = np.random.default_rng(20)
    robots, members, weights = [], [], rng.integers(1, 9, 20).tolist()
    for number in range(20):
        width, name = 2 + number % 7, f"act{number}"
        fps = [5, 10, 12.5, 15, 20, 25, 30, 50][number % 8]
        lengths = rng.integers(3, 30, 3).tolist()
        cameras = {f"cam{number}": (4 + number % 3, 6)} if number % 2 else None
        robot = write_robot(
            tmp_path / f"r{number}", fps=fps, width=width, action=name, lengths=lengths, seed=number, cameras=cameras
        )
        rename = {name: "action", **({f"cam{number}": "top"} if cameras else {})}
        robots.append((robot, name))
        members.append({"path": f"r{number}", "weight": weights[number], "episodes": {"rename": rename}})
    settings = {
        "fps": 10,
        "windows": {"action": [0, 15]},
        "sizes": {"action": 8, "top": [4, 6]},
        "normalize": {"action": "quantile"},
        "parts": ["action", "top"],
    }
    length = 40 * sum(weights)
    recipe = saved(tmp_path, {"samples": length, "seed": 5, "episodes": settings, "blend": members})
    report = recipe.statistics(progress=False)
    parts = []
    for (robot, name), weight in zip(robots, weights, strict=True):
        values, pads = windows_of(robot, name, range(16), 10)
        parts.append((values[~pads], weight / sum(weights)))
    assert_like(report.features["action"], brute(parts))
    plan = recipe.plan()
    drawn = [source.drawn for source in plan.report().sources]
    assert drawn == [40 * weight for weight in weights]
    assert list(plan.locate(np.arange(length)).source[:5]) is not None
    whole = fm.Loader(plan, 24)
    batches = list(islice(whole, 6))
    assert {batch["action"].shape for batch in batches} == {(24, 16, 8)}
    assert {batch["top"].shape for batch in batches} == {(24, 4, 6, 3)}
    ranks = [fm.Loader(plan, 12, rank=rank, world_size=2) for rank in range(2)]
    for loader in ranks:
        list(islice(loader, 3))
    state = ranks[0].state_dict()
    others = [fm.Loader(recipe.plan(), 8, rank=rank, world_size=3) for rank in range(3)]
    for loader in others:
        loader.load_state_dict(state)
    shares = [list(islice(loader, 3)) for loader in others]
    for step in range(3):
        found = [key for share in shares for key in zip(share[step]["__key__"], _sums(share[step]), strict=True)]
        wanted = list(zip(batches[3 + step]["__key__"], _sums(batches[3 + step]), strict=True))
        assert sorted(found) == sorted(wanted)
    for loader in (whole, *ranks, *others):
        loader.close()


def _sums(batch: Mapping[str, Any]) -> list[float]:
    return [float(values.sum(dtype=np.float64)) for values in batch["action"]]


def test_the_command_writes_and_shows_them(tmp_path: Path) -> None:
    def run(*words: object) -> Result:
        return CliRunner().invoke(app, [*map(str, words)])

    two(tmp_path)
    saved(tmp_path, MIX)
    shown = run("documents", "stat", tmp_path / "recipe.yaml").stdout
    assert "30.0000%" in shown and "action[4]" in shown and "(2 computed, 0 known)" in shown
    found = json.loads(run("documents", "stat", tmp_path / "recipe.yaml", "--json").stdout)
    assert found["known"] == 2 and len(found["features"]["action"]["q01"]) == 5
    failed = run("documents", "stat", tmp_path / "recipe.yaml", "--plot")
    assert failed.exit_code and "statistics of a recipe are of it alone" in failed.output
    (tmp_path / "docs.jsonl").write_text('{"text": "x"}\n')
    (tmp_path / "docs.yaml").write_text("source: docs.jsonl")
    assert "none of the 1 sources has robot episodes" in run("documents", "stat", tmp_path / "docs.yaml").output
    assert "their statistics are those of a recipe" in run("documents", "stat", tmp_path / "a").output
    lacking = {"normalize": {"actions": "mean_std"}, "sizes": {"actions": 5}}
    saved(tmp_path, {"blend": [{"path": "a"}, {"path": "b"}], "samples": 9, "episodes": lacking})
    for verb in (["documents", "stat"], ["plan"]):
        assert "note: a has no actions: all padding" in run(*verb, tmp_path / "recipe.yaml").output


def test_a_condition_that_no_frame_fulfils_and_a_key_that_is_not_there(tmp_path: Path) -> None:
    write_robot(tmp_path / "r", lengths=(2, 3))
    with pytest.raises(EmptyResult, match=r"0 of 5 frames kept\. Check 'where': the values of .* are 0, 1"):
        fm.open(tmp_path / "r", episodes={"where": {"episode_index": 7}})
    with pytest.raises(NotFound, match="Keys are EPISODE/STEP, from 000000/000000 to 000001/000002"):
        fm.open(tmp_path / "r")["0/2"]


def test_episodes_without_frames_are_passed_over(tmp_path: Path) -> None:
    robot = write_robot(tmp_path / "r", lengths=(5, 0, 4, 0), fps=20)
    dataset = fm.open(tmp_path / "r", episodes={"fps": 10, "windows": {"action": [-1, 2]}})
    values, pads = windows_of(robot, "action", range(-1, 3), 10)
    assert np.array_equal(np.stack([sample["action"] for sample in dataset]), values)
    assert np.array_equal(np.stack([sample["action_is_pad"] for sample in dataset]), pads)
    report = saved(tmp_path, {"unit": "episodes", "samples": 9, "blend": [{"path": "r"}]}).plan().report()
    assert report.sources[0].drawn == 9
    write_robot(tmp_path / "none", lengths=(0,))
    with pytest.raises(ConfigError, match="has no samples"):
        saved(tmp_path, {"source": "none"}).plan()


def test_a_camera_that_starts_late_is_an_error_of_its_frames(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    write_robot(tmp_path / "r", lengths=(6,), cameras={"front": (16, 16)}, video=True)
    with av.open(str(tmp_path / "r/videos/front/chunk-000/file-000.mp4"), "w") as out:
        stream = out.add_stream("libx264", rate=10)
        stream.width = stream.height = 16
        for number in range(3, 6):
            frame = av.VideoFrame.from_ndarray(np.full((16, 16, 3), number * 20, np.uint8), "rgb24")
            frame.pts = number
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    dataset = fm.open(tmp_path / "r", episodes={"windows": {"front": [0, 1]}, "sizes": {"front": [8, 8]}})
    assert dataset[3]["front"].shape == (2, 8, 8, 3)
    with pytest.raises(DataError, match=r"no frame within 0\.05 s of 0\.2000 s"):
        dataset[2]["front"]
