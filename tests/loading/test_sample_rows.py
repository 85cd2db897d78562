"""Recipes that pack conversations with pictures beside token files, in loaders, task encoders and Energon's face."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.planning.recipes.fields import LengthsModel
from feedmill.tokens.options import Lengths

pytest.importorskip("PIL.Image")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
from helpers.chat_families import no_child
from helpers.processor_data import dataset, picture, processor, talk

__all__ = ["no_child"]
pytestmark = pytest.mark.usefixtures("no_child")

RECIPE = """
seed: 3
samples: 60
blend:
  - {path: vqa/, weight: 0.6, lengths: next}
  - {path: docs.jsonl, tokens: input_ids, weight: 0.4}
lengths:
  next: {processor: p/}
pack: {seq_len: 8192, multiple: 16, media: 4, long: drop}
balance: {by: attention, linear: 100, media: 20, media_squares: 0.1}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    processor(folder / "p")
    rng = np.random.default_rng(0)
    members: dict[str, bytes] = {}
    for number in range(20):
        pictures = int(rng.integers(0, 3))
        for place in range(pictures):
            width, height = rng.integers(40, 300, 2).tolist()
            members[f"{number:03d}.{place}.jpg"] = picture(width, height)
        members[f"{number:03d}.json"] = talk("x" * int(rng.integers(1, 200)), *([None] * pictures))
    dataset(folder / "vqa", members)
    documents = [{"input_ids": list(range(int(rng.integers(1, 900))))} for _ in range(12)]
    (folder / "docs.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (folder / "r.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(autouse=True)
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(folder / "cache"))


def changed(folder: Path, old: str, new: str) -> fm.Plan:
    assert old in RECIPE
    (folder / "changed.yaml").write_text(RECIPE.replace(old, new))
    return fm.Recipe.load(folder / "changed.yaml").plan()


def test_a_recipe_packs_what_the_verb_counts(folder: Path) -> None:
    plan = fm.Recipe.load(folder / "r.yaml").plan()
    report = fm.tokens.lengths(folder / "vqa", processor=folder / "p", split="train", progress=False)
    assert report.reused == report.samples == 20  # by the recipe
    vqa = fm.open(str(folder / "vqa"))
    rows = plan.read(range(len(plan)))
    for row in rows:
        assert row.cu_seqlens[-1] <= 8192 and (row.cu_seqlens % 16 == 0).all()
        media = 0
        for sample, length, key, source in zip(row, row.lengths, row.keys, row.sources, strict=True):
            if source == "docs":
                assert sample["input_ids"].tolist() == list(range(length))
                continue
            assert length == report.lengths[vqa.find(key)] and sample["json"]["messages"]
            images = [name for name in sample if name.endswith("jpg")]
            media += len(images)
            assert all(sample[name].ndim == 3 for name in images)
        assert media <= 4
    assert sum(map(len, rows)) == 60
    whole = fm.tokens.PackedPlan(
        fm.Plan.over(fm.open(str(folder / "vqa")).lengths_by(folder / "p", progress=False), epochs=1),
        fm.tokens.Packing(8192, media=4, long="drop"),
    )
    assert sorted(key for row in whole.read(range(len(whole))) for key in row.keys) == [f"{n:03d}" for n in range(20)]
    some = fm.open(str(folder / "vqa")).lengths_by(folder / "p", progress=False).select([3, 1])
    assert some.lengths.tolist() == [report.lengths[3], report.lengths[1]]


def test_the_plan_shows_what_it_packs(folder: Path) -> None:
    from typer.testing import CliRunner

    from feedmill.cli.app import app

    shown = CliRunner().invoke(app, ["plan", str(folder / "r.yaml")]).output
    assert (
        "media a row" in shown
        and "vqa: 20 samples of" in shown
        and "lengths next" in str(fm.Recipe.load(folder / "r.yaml"))
    )
    facts = json.loads(CliRunner().invoke(app, ["plan", str(folder / "r.yaml"), "--json"]).output)
    assert facts["packing"]["whole_samples"][0]["processor"] == "LlavaNextProcessor"
    traced = CliRunner().invoke(app, ["trace", str(folder / "r.yaml"), "--step", "0", "--global-batch", "1", "--json"])
    plan = fm.Recipe.load(folder / "r.yaml").plan()
    (row,) = plan.read([0])
    assert [entry["key"] for entry in json.loads(traced.output)["entries"]] == row.keys


class Task(fm.TaskEncoder):
    """Hooks as for packing while loading: the same methods."""

    def encode_sample(self, sample: Any) -> Any:
        return len(sample["input_ids"]) if "input_ids" in sample else sum(name.endswith("jpg") for name in sample)

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        raise AssertionError("the plan packs")

    def pack_selected_samples(self, samples: Any) -> Any:
        assert isinstance(samples, fm.samples.SampleRow)
        return {"each": [*samples], "first": samples[0], "ends": samples.cu_seqlens, "keys": samples.keys}

    def batch(self, samples: list[Any]) -> Any:
        return samples


def test_a_task_encoder_gets_the_row_and_resumes_on_other_ranks(folder: Path) -> None:
    plan = fm.Recipe.load(folder / "r.yaml").plan()
    rows = plan.read(range(len(plan)))
    seen: list[Any] = []
    state = None
    for rank in range(3):
        loader = fm.Loader(plan, 1, task_encoder=Task(), rank=rank, world_size=3, remainder="ragged")
        seen += next(iter(loader))
        state = loader.state_dict()
    assert state is not None
    for rank in range(2):
        loader = fm.Loader(plan, 2, task_encoder=Task(), rank=rank, world_size=2, remainder="ragged", workers=1)
        loader.load_state_dict(state)
        seen += itertools.chain.from_iterable(loader)
        loader.close()
    made = sorted((each["keys"], each["ends"].tolist()) for each in seen)
    assert made == sorted((row.keys, row.cu_seqlens.tolist()) for row in rows)
    by_keys = {tuple(each["keys"]): each for each in seen}
    for row in rows:
        counts = [Task().encode_sample(sample) for sample in row]
        assert by_keys[tuple(row.keys)]["each"] == counts and by_keys[tuple(row.keys)]["first"] == counts[0]


def test_rows_without_a_hook_stay_rows(folder: Path) -> None:
    plan = fm.Recipe.load(folder / "r.yaml").plan()
    (batch,) = itertools.islice(fm.Loader(plan, 2, rank=0, world_size=1), 1)
    assert [type(row) for row in batch] == [fm.samples.SampleRow] * 2
    with pytest.raises(ConfigError, match=r"targets are of rows of tokens.*collate_rows"):
        next(iter(fm.Loader(plan, 2, rank=0, world_size=1, collate=fm.tokens.with_targets)))
    with pytest.raises(ConfigError, match="buffer=8 has no use"):
        fm.Loader(plan, 2, rank=0, world_size=1, task_encoder=Task(), buffer=8)


def test_energon_code_gets_rows_of_the_plan(folder: Path) -> None:
    pytest.importorskip("torch")
    from feedmill.compat.energon import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset

    class Energons(DefaultTaskEncoder):
        encode_sample, batch = Task.encode_sample, Task.batch
        select_samples_to_pack = Task.select_samples_to_pack

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return {"lengths": [int(each) for each in samples], "samples": len(samples), "keys": samples.keys}

    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    plan = fm.Recipe.load(folder / "r.yaml").plan()
    with pytest.warns(UserWarning, match="packing_buffer_size has no effect"):
        made = get_train_dataset(
            folder / "r.yaml",
            worker_config=config,
            batch_size=1,
            packing_buffer_size=100,
            task_encoder=Energons(),
            shuffle_buffer_size=100,
        )
    loader = get_savable_loader(made)
    first = [batch[0]["keys"] for batch in itertools.islice(loader, 3)]
    state = loader.save_state_rank()
    rest = [batch[0]["keys"] for batch in itertools.islice(loader, len(plan) - 3)]
    again = get_savable_loader(made)
    again.restore_state_rank(state)
    assert [batch[0]["keys"] for batch in itertools.islice(again, len(plan) - 3)] == rest
    assert first + rest == [row.keys for row in plan.read(range(len(plan)))]
    with pytest.raises(ConfigError, match="does not say what a row becomes"):
        get_train_dataset(folder / "r.yaml", worker_config=config, batch_size=1, shuffle_buffer_size=100)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("lengths: next}", "lengths: nxt}", r"names the lengths 'nxt', which the recipe does not declare.*'next'"),
        (", lengths: next}", "}", "no source names the lengths 'next'"),
        ("tokens: input_ids,", "tokens: input_ids, lengths: next,", "not for a source with 'tokens'"),
        ("{processor: p/}", "{processor: p/, chat_templat: x}", r"yaml:8.*unknown key 'chat_templat'.*'chat_template'"),
        ("{processor: p/}", "{processor: nowhere/}", r"nowhere.*no preprocessor_config.json"),
        ("{processor: p/}", "{processor: p/, media: [png]}", r"no sample has media in the part 'png'.*yaml:8"),
        ("{processor: p/}", "{processor: p/, messages: txt}", r"no conversation in part 'txt'"),
        ("long: drop}", "long: split}", None),
        ("seed: 3", "seed: 3\ntargets: {}", r"yaml:3.*'targets' is for rows of tokens.*collate_rows"),
        ("seq_len: 8192, multiple: 16, media: 4, long: drop", "seq_len: 1024", r"yaml:9.*'long: split' cannot cut"),
        ("multiple: 16", "method: concat", "'long' needs 'method: best_fit'"),
    ],
)
def test_what_a_recipe_says_wrong(folder: Path, old: str, new: str, said: str | None) -> None:
    if said is None:
        assert len(changed(folder, old, new)) > 0
        return
    with pytest.raises(fm.FeedmillError, match=said):
        changed(folder, old, new)


def test_a_changed_processor_folder_is_named(folder: Path, tmp_path: Path) -> None:
    loader = fm.Loader(fm.Recipe.load(folder / "r.yaml").plan(), 1, rank=0, world_size=1)
    state = loader.state_dict()
    other = processor(tmp_path / "other")
    file = tmp_path / "other" / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "do_convert_rgb": False}))
    plan = changed(folder, "processor: p/", f"processor: {other}")
    again = fm.Loader(plan, 1, rank=0, world_size=1)
    with pytest.raises(ConfigError, match=r"processor of vqa was LlavaNextProcessor [0-9a-f]+, is now"):
        again.load_state_dict(state)


def test_recipes_take_the_options_of_the_verb() -> None:
    """All but where the data is, how it is checked, the processes, and the progress."""
    options = set(Lengths.__dataclass_fields__) - {"_"}
    assert set(LengthsModel.model_fields) == options - {"path", "split", "check_samples", "workers", "progress"}


def test_worker_processes_find_the_lengths(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan = fm.Recipe.load(folder / "r.yaml").plan()
    capfd.readouterr()
    with_processes = fm.Loader(plan, 2, rank=0, world_size=1, remainder="ragged", workers=fm.Workers(1, processes=True))
    rows = [row.keys for batch in with_processes for row in batch]
    with_processes.close()
    assert rows == [row.keys for row in plan.read(range(len(plan)))] and "counting" not in capfd.readouterr().err


def test_lengths_without_pack_are_costs(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "budget.yaml").write_text(
        "source: {path: vqa/, lengths: a}\nlengths: {a: {processor: p/, messages: json}}\nbatch: {tokens: 4500}\n"
    )
    plan = fm.Recipe.load(folder / "budget.yaml").plan()
    lengths = plan.sources[0].lengths
    assert lengths is not None
    for batch in itertools.islice(fm.Loader(plan, rank=0, world_size=1, output="samples"), 4):
        tokens = [int(lengths[plan.sources[0].find(sample.key)]) for sample in batch]
        assert sum(tokens) <= 4500
    assert not caplog.records


def test_a_nested_recipe_declares_its_own_lengths(folder: Path) -> None:
    (folder / "inner.yaml").write_text("source: {path: vqa/, lengths: a}\nlengths: {a: {processor: p/}}\nepochs: 1\n")
    (folder / "outer.yaml").write_text("source: {recipe: inner.yaml}\nepochs: 1\npack: {seq_len: 8192, media: 2}\n")
    plan = fm.Recipe.load(folder / "outer.yaml").plan()
    rows = plan.read(range(len(plan)))
    assert sorted(key for row in rows for key in row.keys) == [f"{n:03d}" for n in range(20)]
