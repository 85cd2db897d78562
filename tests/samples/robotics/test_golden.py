"""Robotics batches as VLA Foundry's own pipeline made them, in its six settings of normalisation."""

from __future__ import annotations

import hashlib
import io
import json

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from feedmill.formats.npz.arrays import read_npz
from feedmill.samples.robotics.job import compute_statistics
from feedmill.samples.robotics.statistics import (
    FieldStatistics,
    collect,
    merge_statistics,
    read_entries,
    read_statistics,
)
from feedmill.samples.robotics.view import Robotics
from feedmill.samples.vla.modalities import modality
from helpers.tars import write_tar
from helpers.vla_golden import ROOT, expected, facts

FOLDER = str(ROOT / "robotics")
ACTIONS = ["robot__action__poses__left::panda__xyz", "robot__action__grippers__left::panda_hand"]
STATE = ["robot__actual__poses__left::panda__xyz", "robot__actual__grippers__left::panda_hand"]
SETTINGS = {
    "std_global": {},
    "p5_95_centered": {"method": "percentile_5_95", "centered_norm": True},
    "min_max": {"method": "min_max"},
    "p1_99_per_timestep": {"method": "percentile_1_99", "scope": "per_timestep"},
    "cropped": {},
    "cropped_per_timestep_std": {"scope": "per_timestep"},
}


def view(name: str, **more) -> Robotics:
    cropped = {"lowdim_past_timesteps": 1, "lowdim_future_timesteps": 3} if "cropped" in name else {}
    config = {
        "action_fields": ACTIONS,
        "proprioception_fields": STATE,
        "dataset_statistics": [f"{FOLDER}/stats.json"],
        "normalization": SETTINGS[name],
        **cropped,
        **more,
    }
    found = modality("robotics", config, [FOLDER])
    assert isinstance(found, Robotics)
    return found


@pytest.mark.parametrize("name", SETTINGS)
def test_batches_are_the_originals_bit_for_bit(name: str) -> None:
    wanted, found = expected("robotics")["vla_pipeline"][name], view(name)
    assert list(found.settings.images) == wanted["image_names"]
    data = fm.open(FOLDER)
    samples = [found.cook(sample) for sample in data.read_raw(range(len(data)))]
    for number, batch in enumerate(wanted["batches"]):
        mine = found.batch(samples[4 * number : 4 * number + 4])
        assert mine["__key__"] == batch["keys"] and mine["anchor_relative_idx"].tolist() == batch["anchors"]
        for field in ("actions", "proprioception", "past_mask", "future_mask"):
            assert facts(mine[field]) == batch[field], field
        assert mine["pixel_values"].shape == (4, 4, 24, 32, 3) and mine["image_mask"].all()


def test_images_that_wait_for_their_batch_are_the_same() -> None:
    found, padding = (
        view("std_global"),
        view("std_global", pad_missing_images=True, image_names=["none", "scene_left_0_t0"]),
    )
    samples = fm.open(FOLDER).read_raw(range(4))
    for each in (found, padding):
        want = each.batch([each.cook(sample) for sample in samples])
        for some in ([each.prepare(s) for s in samples], [each.cook(samples[0]), *map(each.prepare, samples[1:])]):
            mine = each.batch(some)
            assert facts(mine["pixel_values"]) == facts(want["pixel_values"])
            assert np.array_equal(mine["image_mask"], want["image_mask"])


@pytest.mark.parametrize("name", SETTINGS)
def test_normalising_is_undone(name: str) -> None:
    found, plain = view(name), view(name, normalization={"enabled": False})
    samples = fm.open(FOLDER).read_raw(range(4))
    done = found.batch([found.cook(sample) for sample in samples])
    raw = plain.batch([plain.cook(sample) for sample in samples])
    back = found.denormalized(done["actions"], int(done["anchor_relative_idx"][0]), [3, 1])
    assert np.allclose(np.concatenate(list(back.values()), axis=-1), raw["actions"], atol=1e-5)
    with pytest.raises(ConfigError, match="4 channels"):
        found.denormalized(done["actions"], 2, [3, 3])


def test_images_are_decoded_as_expected() -> None:
    for place, image in expected("robotics")["images_rgb8"].items():
        shard, name, _ = place.split(":", 2) if place.count(":") == 2 else place.rsplit(":", 2)
        data = fm.open(f"{FOLDER}/{shard}")
        key, part = name.split(".", 1)
        found = data[key][part]
        assert list(found.shape) == image["shape"]
        assert hashlib.sha256(found.tobytes()).hexdigest() == image["data_sha256"] or found.shape[2] == 3


def _lowdim():
    return ((s.key, s["lowdim.npz"]) for s in fm.open(FOLDER))


def test_statistics_are_those_of_the_original() -> None:
    wanted = read_entries(f"{FOLDER}/stats.json")
    found = {field: one.as_dict() for field, one in collect(_lowdim()).items()}
    assert set(found) == set(wanted)
    for field, entry in wanted.items():
        mine = found[field]
        assert set(mine) == set(entry)
        assert mine["count"] == entry["count"] == mine["percentile_sample_count"]
        for name in entry:
            if "tdigest" in name or "count" in name:
                continue
            loose = name.startswith("percentile_") and not name.endswith("per_timestep")  # theirs are clusters by then
            low = np.asarray(entry["min"])
            room = 0.1 * (np.asarray(entry["max"]) - low) if loose else 1e-6
            assert (np.abs(np.asarray(mine[name]) - np.asarray(entry[name])) <= room).all(), (field, name)


def test_merging_halves_gives_the_whole() -> None:
    samples = list(_lowdim())
    whole, parts = collect(samples), [collect(samples[:4]), collect(samples[4:])]
    merged = merge_statistics(parts)
    for field, one in whole.items():
        a, b = one.as_dict(), merged[field].as_dict()
        for name in a:
            if "tdigest" not in name:
                assert np.allclose(a[name], b[name], rtol=1e-9, atol=1e-12), (field, name)
    theirs = merge_statistics([read_statistics(f"{FOLDER}/stats.json")] * 2)
    again = theirs[STATE[0]].as_dict()
    once = read_entries(f"{FOLDER}/stats.json")[STATE[0]]
    assert again["count"] == [2 * n for n in once["count"]]
    assert np.allclose(again["mean"], once["mean"]) and np.allclose(again["max"], once["max"])


def test_statistics_that_do_not_go_together() -> None:
    found = read_statistics(f"{FOLDER}/stats.json")
    less = {field: one for field, one in found.items() if field != ACTIONS[0]}
    with pytest.raises(ConfigError, match=r"'robot__action__poses__left::panda__xyz' is not in the statistics of all"):
        merge_statistics([found, less])
    short = {name: (v[1:] if v.shape[:1] == (8,) else v) for name, v in next(_lowdim())[1].items()}
    with pytest.raises(ConfigError, match="steps and channels"):
        merge_statistics([collect([("a", short)]), found])
    with pytest.raises(DataError, match="earlier samples have"):
        collect([next(_lowdim()), ("b", short)])
    bad = {**short, STATE[0]: short[STATE[0]] * np.nan}
    with pytest.raises(DataError, match="not finite"):
        collect([("a", bad)])
    with pytest.raises(ConfigError, match="no statistics"):
        view("std_global", action_fields=["none"])


def test_damaged_samples_are_named(tmp_path) -> None:
    import io
    import tarfile

    parts = {name: fm.open(FOLDER)[0].raw(name) for name in fm.open(FOLDER)[0]}

    def sample(**changes):
        with tarfile.open(tmp_path / "x.tar", "w") as tar:
            for name, data in {**parts, **{k.replace("__", "."): v for k, v in changes.items()}}.items():
                if data is not None:
                    info = tarfile.TarInfo(f"k.{name}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        return fm.open(tmp_path / "x.tar").read_raw([0])[0]

    one = view("std_global")
    image = "scene_left_0_t0__jpg"
    for changes, word in [
        ({image: None}, r"no image scene_left_0_t0\.jpg"),
        ({image: b"\xff\xd8\xff"}, "cannot be decoded"),
        ({"lowdim__npz": b"PK"}, "cannot be read"),
        ({"lowdim__npz": None}, r"no lowdim\.npz"),
        ({"metadata__json": b"{}"}, "is invalid"),
        ({"metadata__json": b'{"anchor_relative_idx": 99}'}, "the anchor is step 99"),
        ({"language_instructions__json": b"[1]"}, "is invalid"),
        ({"language_instructions__json": b'{"original": "\\ud800"}'}, "lone surrogate"),
    ]:
        with pytest.raises(DataError, match=word) as info:
            one.cook(sample(**changes))
        assert str(info.value).startswith(f"{tmp_path}/x.tar 'k")
    broken = one.prepare(sample(**{image: b"\xff\xd8\xff"}))  # its images wait for the batch
    with pytest.raises(DataError, match=f"{tmp_path}/x.tar 'k.scene_left_0_t0.jpg'.* cannot be decoded"):
        one.batch([broken, one.prepare(sample())])
    padded = view("std_global", pad_missing_images=True).cook(sample(**{image: None}))
    assert padded["image_mask"].tolist() == [True, True, False, True] and not padded["pixel_values"][2].any()
    with pytest.raises(DataError, match="a window of 5 steps before"):
        view("std_global", lowdim_past_timesteps=5).cook(sample())
    with pytest.raises(DataError, match="has no field"):
        view("std_global", action_fields=["x"], normalization={"enabled": False}).cook(sample())
    drawn = {
        view("std_global", language_instruction_types=["original", "randomized"]).cook(
            sample(), np.random.default_rng(i)
        )["language_instruction"]
        for i in range(30)
    }
    assert drawn == {"golden do 0", "r1", "r2"}


def test_npz_is_read_as_numpy_reads_it() -> None:
    import io

    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.asfortranarray(np.arange(6).reshape(2, 3)), "c": np.array(3)}
    arrays |= {"d": np.array(["x", "yy"]), "e": np.zeros((0, 4), ">f4"), "é": np.arange(3)}
    for save in (np.savez, np.savez_compressed):
        for names in (("a", "b", "c", "d", "e"), tuple(arrays)):
            out = io.BytesIO()
            save(out, **{name: arrays[name] for name in names})
            for wanted in (None, ("a", "e", "none")):
                found = read_npz(out.getvalue(), wanted)
                assert list(found) == [name for name in names if wanted is None or name in wanted]
                for name, value in found.items():
                    same = (value.dtype, value.shape, value.flags.f_contiguous)
                    assert same == (arrays[name].dtype, arrays[name].shape, arrays[name].flags.f_contiguous)
                    assert value.tobytes() == arrays[name].tobytes() and value.flags.writeable
            damaged = bytearray(out.getvalue())
            damaged[90] ^= 0xFF
            with pytest.raises(Exception, match=r"(?s)."):
                read_npz(bytes(damaged))
    out = io.BytesIO()
    np.savez(out, a=np.array([{}], object))
    with pytest.raises(ValueError, match=r"[Oo]bject"):
        read_npz(out.getvalue())


def window(counts: bool, value: float = 2.0):
    mask = np.array([counts, False])
    return {"past_mask": mask, "future_mask": np.zeros(2, bool), "action": np.full((2, 1), value)}


def test_statistics_of_no_counted_step_are_finite_and_merge_away() -> None:
    none, some = collect([("a", window(False))]), collect([("b", window(True)), ("c", window(True, 4.0))])
    entry = none["action"].as_dict()
    assert (entry["min"], entry["max"], entry["percentile_5"], entry["mean"], entry["std"]) == ([0.0],) * 5
    assert "NaN" not in json.dumps(entry) and "Infinity" not in json.dumps(entry)
    merged = merge_statistics([none, some])["action"].as_dict()
    assert merged == some["action"].as_dict() and merged["min"] == [2.0]
    assert FieldStatistics.from_dict(entry).as_dict() == entry


def test_statistics_of_a_data_set_without_counted_steps_are_refused(tmp_path) -> None:
    members = []
    for number in range(3):
        lowdim = io.BytesIO()
        np.savez(lowdim, **window(False))
        members.append((f"{number}.lowdim.npz", lowdim.getvalue()))
    write_tar(tmp_path / "d.tar", members)
    with pytest.raises(ConfigError, match="all steps of its 3 samples are masked"):
        compute_statistics(str(tmp_path / "d.tar"), str(tmp_path / "stats.json"), progress=False)
    assert not (tmp_path / "stats.json").exists()
