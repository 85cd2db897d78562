"""VLA Foundry's mixtures, exact: 2 ranks x 2 workers, even and uneven shards, small windows, resumed anywhere."""

from __future__ import annotations

import io
import json
import math
import re
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from feedmill.compat.vla import VlaRun
from feedmill.errors import ConfigError
from feedmill.formats.pth import dump
from feedmill.formats.vla.manifest import Row, manifest_text
from helpers.vla_golden import ROOT

EVEN = ([64] * 40, [64] * 40)
UNEVEN = ([40 + 8 * (i % 7) for i in range(60)], [24 + 8 * (i % 7) for i in range(40)])
FEW_LARGE = ([64] * 40, [400] * 6)


def make(folder: Path, name: str, counts: list[int]) -> str:
    rows = []
    (folder / name / "shards").mkdir(parents=True)
    body = dump(np.arange(4))
    for shard, count in enumerate(counts):
        with tarfile.open(folder / name / "shards" / f"{shard:03}.tar", "w") as tar:
            for i in range(count):
                info = tarfile.TarInfo(f"{name}{shard:03}_{i:04}.input_ids.pth")
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))
        rows.append(Row(f"shards/{shard:03}.tar", count))
    (folder / name / "manifest.jsonl").write_bytes(manifest_text(rows))
    return str(folder / name / "manifest.jsonl")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("mixes")
    sets = {"even": EVEN, "uneven": UNEVEN, "large": FEW_LARGE}
    return {
        name: [make(folder / name, letter, counts) for letter, counts in zip("AB", pair, strict=True)]
        for name, pair in sets.items()
    }


def run_of(manifests: list[str], weights: list[float], total: int, checkpoints: int, **data_settings) -> VlaRun:
    settings = {
        "type": "text",
        "dataset_manifest": manifests,
        "dataset_weighting": weights,
        "dataset_modality": ["text"] * len(manifests),
        "allow_multiple_epochs": True,
        "num_workers": 2,
        **data_settings,
    }
    return VlaRun(
        {
            "data": settings,
            "total_train_samples": total,
            "num_checkpoints": checkpoints,
            "hparams": {"global_batch_size": 16},
        }
    )


@pytest.mark.parametrize("name", ["even", "uneven", "large"])
@pytest.mark.parametrize("weights", [[0.7, 0.3], [0.99, 0.01]])
@pytest.mark.parametrize("checkpoints", [5, 20])
def test_every_window_has_the_shares_that_were_asked(data, name: str, weights, checkpoints: int) -> None:
    run = run_of(data[name], weights, 6400, checkpoints)
    windows = run.windows()
    assert [w.start for w in windows[1:]] == [w.stop for w in windows[:-1]]
    assert (windows[0].start, windows[-1].stop, len(windows)) == (0, 6400, checkpoints)
    for window in windows:
        for found, weight in zip(run.shares(window), weights, strict=True):
            assert abs(found - weight * window.samples) <= 1, (window, found)
    assert sum(w.samples for w in windows) == 6400


@pytest.mark.parametrize("name", ["even", "uneven"])
def test_ranks_and_workers_read_it_exactly_and_an_epoch_has_each_sample_once(data, name: str) -> None:
    run = run_of(data[name], [0.7, 0.3], 1600, 5)
    loaders = [run.loader(rank, 2) for rank in range(2)]
    seen: Counter[str] = Counter()
    for window in run.windows():
        inside: Counter[str] = Counter()
        for loader in loaders:
            for batch in run.batches(loader, window):
                assert len(batch["__key__"]) == 8 and batch["input_ids"].shape == (8, 4)
                seen.update(batch["__key__"])
                inside.update(key[0] for key in batch["__key__"])
        assert abs(inside["A"] - 0.7 * window.samples) <= 1 and sum(inside.values()) == window.samples
    assert sum(seen.values()) == 1600 and max(seen.values()) == 1  # less than an epoch of both


def test_each_epoch_of_a_data_set_is_whole_before_the_next_begins(data) -> None:
    run = run_of(data["even"], [0.7, 0.3], 8000, 5)  # 5600 of A (2560 samples), 2400 of B
    found = run.plan.locate(np.arange(8000))
    for source, length in ((0, 2560), (1, 2560)):
        drawn = found.index[found.source == source]
        for start in range(0, len(drawn), length):
            part = drawn[start : start + length]
            assert len(np.unique(part)) == len(part)
            if len(part) == length:
                assert (np.sort(part) == np.arange(length)).all()


def test_a_run_goes_on_in_the_middle_of_a_window_on_other_ranks(data) -> None:
    run = run_of(data["uneven"], [0.7, 0.3], 960, 3)
    window = run.windows()[1]

    def keys(batch) -> list[str]:
        return list(batch["__key__"])

    one = run.loader(0, 1)
    whole = [keys(batch) for batch in one]
    halves = [run.loader(rank, 2) for rank in range(2)]
    for loader in halves:
        for number, _ in enumerate(loader):
            if number == 24:  # 25 steps: in the second window of 20 each
                break
    assert window.start < halves[0].position == 25 * 16 < window.stop
    state = json.loads(json.dumps(halves[0].state_dict()))
    for world, workers in ((1, 0), (4, 2)):
        again = [run.loader(rank, world, workers=workers) for rank in range(world)]
        for loader in again:
            loader.load_state_dict(state)
        rest = [[keys(batch) for batch in run.batches(loader, window)] for loader in again]
        together = [[key for part in parts for key in part] for parts in zip(*rest, strict=True)]
        assert together == whole[25:40]
        with pytest.raises(ConfigError, match="position 640 of the loader"):
            next(run.batches(again[0], run.windows()[0]))


def test_an_epoch_that_may_not_be_repeated_ends_the_run_with_the_sums(data) -> None:
    run = run_of(data["even"], [0.7, 0.3], 4000, 5, allow_multiple_epochs=False)
    with pytest.raises(ConfigError, match="A"):
        _ = run.plan
    short = run_of(data["even"], [0.7, 0.3], 3600, 5, allow_multiple_epochs=False)
    drawn = short.plan.locate(np.arange(3600))
    assert max(Counter(zip(drawn.source.tolist(), drawn.index.tolist(), strict=True)).values()) == 1


def test_epochs_are_counted_over_all_data_sets(data) -> None:
    run = run_of(data["even"], [0.7, 0.3], 0, 4)
    config = {**run.config, "total_train_samples": None, "num_epochs": 2}
    assert VlaRun(config).total == 2 * 5120
    with pytest.raises(ConfigError, match="requires allow_multiple_epochs"):
        VlaRun({**config, "data": {**config["data"], "allow_multiple_epochs": False}})
    with pytest.raises(ConfigError, match="both set"):
        VlaRun({**config, "total_train_samples": 5})


def test_options_go_before_the_file(data, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        "data:\n  type: text\n  dataset_manifest: [x]\n  seq_len: 3\nhparams:\n  global_batch_size: 8\n"
    )
    options = [
        "--data.dataset_manifest", json.dumps(data["even"]), "--data.dataset_weighting=[0.7, 0.3]",
        "--data.dataset_modality", '["text","text"]', "--total-train-samples", "100",
        "--data.shuffle_buffer_size", "2000",
    ]  # fmt: skip
    run = VlaRun.load(tmp_path / "run.yaml", options)
    assert run.plan.length == 100 and run.modalities()["text"].seq_len == 3
    meanings = {meaning.name: meaning for meaning in run.settings}
    assert meanings["data.seq_len"].used and not meanings["data.shuffle_buffer_size"].used
    alone = VlaRun.load(None, [*options, "--data.type", "text"])
    assert alone.plan.length == 100


@pytest.mark.parametrize(
    "options, word",
    [
        (["data.seq_len"], "is not an option"),
        (["--data.seq_len"], "has no value"),
        (["--data.seq_len", "[1"], "is not valid YAML"),
        (["--data.seq_lenn", "1"], r"unknown setting 'data.seq_lenn' \(did you mean 'data.seq_len'\?\)"),
        (["--data", "3", "--data.seq_len", "1"], "below 'data'"),
        (["--data.shufle", "1"], r"did you mean 'data.shuffle'"),
    ],
)
def test_bad_options_are_named(options: list[str], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        VlaRun.load(None, options)


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"dataset_weighting": [0, 0]}, "all weights are 0"),
        ({"dataset_weighting": [1]}, "the lists must have the same length"),
        ({"dataset_modality": ["text", "robotics"]}, "cannot be used in a run of type 'text'"),
        ({"dataset_manifest": ["pipe:cat x", "y"]}, "would run a command"),
        ({"dataset_weighting": [0.5, -1]}, "is negative"),
    ],
)
def test_bad_lists_are_named(data, changes, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        _ = run_of(data["even"], [0.7, 0.3], 100, 2, **changes).plan


@pytest.mark.parametrize("name", ["shuffle", "allow_multiple_epochs"])
def test_a_switch_is_true_or_false(data, name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' must be true or false, found 'maybe'"):
        _ = run_of(data["even"], [0.7, 0.3], 100, 2, **{name: "maybe"}).plan


def test_a_sequence_has_a_length(data) -> None:
    for length in (0, -4, "abc"):
        with pytest.raises(ConfigError, match=r"data\.seq_len must be a whole number of at least 1, found"):
            run_of(data["even"], [0.7, 0.3], 100, 2, seq_len=length)


def test_lists_may_be_written_with_commas(data) -> None:
    listed = run_of(data["even"], [0.7, 0.3], 640, 2)
    written = VlaRun.load(None, [
        "--data.type", "text", "--data.dataset_manifest", ",".join(data["even"]),
        "--data.dataset_weighting", "0.7, 0.3", "--data.dataset_modality", "text,text",
        "--data.allow_multiple_epochs", "true", "--total_train_samples", "640",
    ])  # fmt: skip
    assert written.folders == listed.folders
    assert written.recipe.fingerprint == listed.recipe.fingerprint
    one = {"dataset_manifest": data["even"][0], "dataset_weighting": 1, "dataset_modality": "text"}
    assert run_of(data["even"], [1, 0], 64, 2, **one).plan.length == 64


def test_what_is_wrong_is_said_of_the_runs_file_in_its_words(data, tmp_path: Path) -> None:
    config = run_of(data["even"], [0.7, 0.3], 4000, 5, allow_multiple_epochs=False).config
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    with pytest.raises(ConfigError) as error:
        _ = VlaRun.load(tmp_path / "run.yaml").plan
    assert str(error.value).startswith(f"{tmp_path}/run.yaml 'A': ")
    assert re.search("'total_train_samples: [0-9]+', set data.allow_multiple_epochs to true", str(error.value))


def test_a_weight_of_zero_reads_nothing(data) -> None:
    run = run_of(data["even"], [1, 0.0], 640, 4)
    assert [run.shares(window) for window in run.windows()] == [[160, 0]] * 4
    (note,) = run.notes
    assert note.startswith(data["even"][1]) and "is not read" in note


def test_windows_that_cannot_be(data) -> None:
    with pytest.raises(ConfigError, match="too few for 20 windows"):
        run_of(data["even"], [0.7, 0.3], 100, 20).windows()
    with pytest.raises(ConfigError, match="not a multiple of 3 ranks"):
        run_of(data["even"], [0.7, 0.3], 100, 2).loader(0, 3)


def test_golden_mixture_of_text_is_loaded_by_modality() -> None:
    folders = [str(ROOT / name / "manifest.jsonl") for name in ("text", "text_b")]
    run = run_of(folders, [0.7, 0.3], 64, 2, seq_len=64)
    loader = run.loader(0, 1, on_error="raise")
    batches = [batch for window in run.windows() for batch in run.batches(loader, window)]
    assert all(batch["input_ids"].shape == (16, 65) for batch in batches) and len(batches) == 4
    keys = Counter(key for batch in batches for key in batch["__key__"])
    assert sum(keys.values()) == 64  # the short samples had substitutes
    assert not math.isnan(loader.metrics.samples)


def test_modalities_side_by_side_in_one_batch() -> None:
    manifests = [str(ROOT / name / "manifest.jsonl") for name in ("text_untokenized", "text")]
    run = VlaRun(
        {
            "data": {
                "type": "text_untokenized", "dataset_manifest": manifests, "dataset_weighting": [1, 1],
                "dataset_modality": ["text_untokenized", "text"], "seq_len": 64, "allow_multiple_epochs": True,
            },
            "total_train_samples": 16, "hparams": {"global_batch_size": 16}, "num_checkpoints": 1,
        }
    )  # fmt: skip
    (batch,) = run.loader()
    assert len(batch["text"]["__key__"]) == len(batch["text_untokenized"]["text"]) == 8
