"""Cookers end to end: chosen by subflavors, given auxiliary data, reproducing what Energon cooked."""

from __future__ import annotations

import dataclasses
import json
import pickle
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.loading.cooking import Cooker, cooker
from feedmill.loading.encoder import Prepared, TaskEncoder, stateless
from feedmill.loading.failures import SkipSample
from feedmill.loading.loader import Loader
from feedmill.loading.workers import Workers
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from feedmill.samples.crude import basic_sample_keys
from feedmill.samples.decode import Decoder
from feedmill.samples.open import open as open_dataset
from feedmill.samples.stores import FileStore
from feedmill.samples.types import BASE_FIELDS, TypedSample, sample_type
from helpers.digests import GOLDEN, digest, expected, golden_digest
from helpers.durations import slow_but

POLY = GOLDEN / "crude_polylithic"
PROCESS = Workers(1, processes=True)


@dataclass(kw_only=True, slots=True)
class Info(TypedSample):
    info: dict[str, Any]


@stateless
def cook_jsonl(sample: Any, images: FileStore[Any], sounds: FileStore[Any]) -> Info:
    row = json.loads(sample.raw("json"))
    image = images.get(row["image"], sample)
    metadata = sounds.get_media_metadata(row["sound"])
    names = ("audio_duration", "audio_channels", "audio_sample_rate", "audio_num_samples")
    info = {
        "json": json.dumps(row, ensure_ascii=False),
        "image": image,
        "sound": sounds.get(row["sound"]),
        "sound_meta": {"type": "av", **{name: getattr(metadata, name) for name in names}},
    }
    return Info(**basic_sample_keys(sample), info=info)


@cooker(need_primary=True, need_cache=True)
def cook_texts(sample: Any, images: FileStore[Any], primary: FileStore[Any], cache: Any) -> Info:
    row = json.loads(sample.raw("json"))
    picture = cache.get(images, row["image"], sample)
    decoded = Decoder("torchrgb")("png", picture)
    info = {"json": json.dumps(row), "image_decoded": decoded, "own_txt": primary.get(".txt").decode()}
    return Info(**basic_sample_keys(sample), info=info)


class Poly(TaskEncoder):
    cookers = (Cooker(cook_jsonl, {"kind": "jsonl"}), Cooker(cook_texts, has_subflavors={"kind": "wds"}))

    def batch(self, samples: list[Any]) -> list[Any]:
        return samples


def raw(path: str, **options: Any) -> Any:
    return open_dataset(path, decode=None, **options)


@pytest.mark.parametrize(
    ("name", "workers"),
    slow_but(
        product(["jsonl_cooked", "both_cooked"], [0, 2, PROCESS]),
        *[("jsonl_cooked", 0), ("both_cooked", 2), ("both_cooked", PROCESS)],
    ),
)
def test_golden_cooked_samples(name: str, workers: Any) -> None:
    torch = pytest.importorskip("torch")
    entry = expected("crude_polylithic")["loads"][name]
    plan = Recipe.load(POLY / entry["path"], split=entry["args"]["split_part"], mode="validation").plan(raw)
    loader = Loader(plan, 4, task_encoder=Poly(), workers=workers)
    found = [sample for batch in loader for sample in batch]
    assert len(found) == entry["count"]
    for sample, golden in zip(found, entry["samples"], strict=True):
        assert sample.__key__ == golden["key"] and sample.__subflavors__ == golden["subflavors"]
        assert [(Path(s.dataset).name, s.index, s.file, list(s.names)) for s in sample.__sources__] == [
            (s["dataset"], s["index"], s["shard"], s["files"]) for s in golden["sources"]
        ]
        info = {key: np.asarray(v) if isinstance(v, torch.Tensor) else v for key, v in sample.info.items()}
        found_digest = {
            key: digest(torch.from_numpy(v)) if isinstance(v, np.ndarray) else digest(v) for key, v in info.items()
        }
        wanted = golden_digest(golden["fields"]["info"])["v"]
        wanted = {key: dict(value) for key, value in wanted.items()}
        if "image_decoded" in wanted:
            found_digest["image_decoded"]["dtype"] = found_digest["image_decoded"]["dtype"].removeprefix("torch.")
        assert found_digest == wanted


def field_map_cooker(cls: type[Any], given: dict[str, str]) -> Any:
    """A cooker written for crude parts that does what a field map says: part names, and keys inside JSON."""

    def value(sample: Any, expression: str) -> Any:
        part, *keys = expression.replace("]", "").split("[")
        found = sample[part]
        for key in keys:
            found = found[key]
        return found

    return lambda sample: cls(
        **basic_sample_keys(sample), **{name: value(sample, expression) for name, expression in given.items()}
    )


def loader_cooker(cls: type[Any], code: str) -> Any:
    """The same from a dataset's own sample loader, as people move it into a cooker."""
    scope: dict[str, Any] = {}
    exec(code, scope)

    def cook(sample: Any) -> Any:
        parts = {name: sample[name] for name in sample if scope["part_filter"](name)}
        made = scope["sample_loader"]({"__key__": sample.key, **parts})
        return cls(**{**basic_sample_keys(sample), **made})

    return cook


@pytest.mark.parametrize("name", list(expected("sample_types")["loads"]))
def test_golden_sample_types_through_cookers(name: str) -> None:
    pytest.importorskip("torch")
    root = GOLDEN / "sample_types" / name
    described = yaml.safe_load((root / ".nv-meta/dataset.yaml").read_text())
    cls = sample_type(described["sample_type"]["__class__"])
    if "field_map" in described:
        cook = field_map_cooker(cls, described["field_map"])
    else:
        cook = loader_cooker(cls, (root / ".nv-meta/sample_loader.py").read_text())

    class Typed(TaskEncoder):
        cookers = (Cooker(cook),)

        def batch(self, samples: list[Any]) -> Any:
            return samples

    dataset = open_dataset(root, split="train", raw=True, decode=Decoder("torchrgb"))
    plan = Plan.over(dataset, shuffle="none", epochs=1)
    (found,) = Loader(plan, 99, task_encoder=Typed())
    wanted = expected("sample_types")["loads"][name]["samples"]
    assert len(found) == len(wanted)
    for sample, golden in zip(found, wanted, strict=True):
        fields = [field.name for field in dataclasses.fields(sample) if field.name not in BASE_FIELDS]
        assert (type(sample), sample.__key__) == (cls, golden["key"])
        assert {field: digest(getattr(sample, field)) for field in fields} == {
            field: golden_digest(value) for field, value in golden["fields"].items()
        }


def write(tmp_path: Path, text: str, lines: int = 3) -> Path:
    (tmp_path / "media").mkdir(exist_ok=True)
    for number in range(lines):
        (tmp_path / f"media/{number}.txt").write_text(f"text {number}")
    rows = [json.dumps({"name": f"{number}.txt"}) for number in range(lines)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    path = tmp_path / "mix.yaml"
    path.write_text(text)
    return path


MIX = """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train: {path: rows.jsonl, aux: {media: "filesystem://media", lines: rows.jsonl}, subflavors: {kind: a}}
"""


def cooked(path: Path, function: Any, **options: Any) -> Any:
    class Task(TaskEncoder):
        cookers = (Cooker(lambda sample: None, {"kind": "b"}), Cooker(function, {"kind": "a"}))

        def batch(self, samples: list[Any]) -> Any:
            return samples

    return next(
        iter(Loader(Recipe.load(path, mode="validation", split="train").plan(), 3, task_encoder=Task(), **options))
    )


def test_parameters_say_what_a_cooker_is_given(tmp_path: Path) -> None:
    path = write(tmp_path, MIX)
    assert cooked(path, lambda s, media: media.get(s["json"]["name"])) == ["text 0", "text 1", "text 2"]
    assert cooked(path, lambda s, lines: lines.get(s.key)) == [{"name": f"{i}.txt"} for i in range(3)]
    assert cooked(path, lambda s, **aux: sorted(aux)) == [["lines", "media"]] * 3
    assert cooked(path, lambda s: s.key) == ["0", "1", "2"]
    assert cooked(path, lambda s, nothing=7: nothing) == [7] * 3
    assert cooked(path, lambda s, *, primary, cache: primary.get("1.json")) == [{"name": "1.txt"}] * 3
    first = cooked(path, lambda s, media, rng: float(rng.random()))
    assert first == cooked(path, lambda s, rng: float(rng.random()), workers=1) and len(set(first)) == 3


def test_decorators_in_any_order(tmp_path: Path) -> None:
    path = write(tmp_path, MIX)

    @stateless(restore_seeds=True, failure_tolerance=3)
    @cooker(need_primary=True)
    def outer(sample: Any, media: Any, primary: Any) -> Any:
        return media.get(sample["json"]["name"]), primary.get(".json"), float(np.random.random())

    @cooker(need_primary=True)
    @stateless(restore_seeds=True)
    def inner(sample: Any, media: Any, primary: Any) -> Any:
        return media.get(sample["json"]["name"]), primary.get(".json"), float(np.random.random())

    class Kitchen:
        @stateless(restore_seeds=True)
        def method(self, sample: Any, media: Any) -> Any:
            return media.get(sample["json"]["name"])

    assert cooked(path, outer) == cooked(path, inner) and cooked(path, Kitchen().method)[2] == "text 2"
    assert Cooker(outer).need_primary and not Cooker(outer).need_cache and Cooker(inner).name.endswith("inner")


def test_errors_name_sample_and_cooker(tmp_path: Path) -> None:
    path = write(tmp_path, MIX)

    def bad(sample: Any) -> Any:
        return {}["nothing"]

    with pytest.raises(
        DataError,
        match=r"rows.jsonl '0' at byte 0: the cooker .*bad failed: KeyError: 'nothing'.*\(the sample has: json\)",
    ):
        cooked(path, bad)

    def missing(sample: Any, media: Any) -> Any:
        return media.get("9.txt")

    with pytest.raises(NotFound, match=r"media/9.txt") as caught:
        cooked(path, missing)
    assert any("in the cooker" in note and "missing" in note for note in caught.value.__notes__)
    with pytest.raises(
        ConfigError, match=r"requires 'images', and the dataset has the auxiliary data media, lines.*'aux'"
    ):
        cooked(path, lambda s, images: None)
    with pytest.raises(ConfigError, match=r"requires 'images', and .* no auxiliary data"):
        cooked(
            write(tmp_path, MIX.replace('aux: {media: "filesystem://media", lines: rows.jsonl}, ', "")),
            lambda s, images: 0,
        )
    with pytest.raises(ConfigError, match=r"no cooker fits .*'kind': 'c'"):
        cooked(write(tmp_path, MIX.replace("kind: a", "kind: c")), lambda s: None)
    with pytest.raises(NotFound, match=r"mix.yaml:5.*'media' is missing|the auxiliary data 'media' is missing"):
        cooked(write(tmp_path, MIX.replace("filesystem://media", "filesystem://none")), lambda s: None)


def test_names_that_leave_their_folder_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, MIX)
    for name in ("../rows.jsonl", "/etc/hostname"):
        with pytest.raises(ConfigError, match="leaves the folder"):
            cooked(path, lambda s, media, name=name: media.get(name))


def test_mistakes_of_the_program_are_no_bad_samples(tmp_path: Path) -> None:
    path = write(tmp_path, MIX)
    with pytest.raises(Exception, match="nowhere") as caught:
        cooked(path, lambda s: nowhere)  # type: ignore[name-defined]  # noqa: F821
    assert isinstance(caught.value.__cause__, NameError)


def test_skipped_samples_get_substitutes(tmp_path: Path) -> None:
    def picky(sample: Any) -> Any:
        if sample.key == "1":
            raise SkipSample
        return sample.key

    found = cooked(write(tmp_path, MIX), picky)
    assert found[0] == "0" and found[2] == "2" and found[1] in ("0", "2")


def test_auxiliary_data_of_all_levels_reaches_its_cookers(tmp_path: Path) -> None:
    write(tmp_path, MIX)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/more").mkdir()
    (tmp_path / "deep/more/x.txt").write_text("deep")
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n"
    (tmp_path / "deep/inner.yaml").write_text(
        head + "    blend:\n    - {path: ../rows.jsonl, aux: {media: 'filesystem://more'}}\n    - {path: ../mix.yaml}\n"
    )
    outer = tmp_path / "outer.yaml"
    outer.write_text(
        head
        + "    blend:\n    - {path: deep/inner.yaml}\n    - {path: rows.jsonl, aux: {media: 'filesystem://./media'}}\n"
    )

    class Task(TaskEncoder):
        cookers = (Cooker(lambda sample, media: Path(media.get_path()).relative_to(tmp_path).as_posix()),)

        def batch(self, samples: list[Any]) -> Any:
            return samples

    plan = Recipe.load(outer, mode="validation", split="train").plan()
    task = Task()
    (found,) = list(Loader(plan, 9, task_encoder=task))
    assert found == ["deep/more"] * 3 + ["media"] * 6
    assert len(task.kitchen._open) == 2  # each source is opened once
    assert not pickle.dumps(Prepared(Poly())).count(b"_kitchen")
