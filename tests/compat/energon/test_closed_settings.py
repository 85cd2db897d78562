"""Every setting of Energon 7.4.1 is taken, refused by name, or without effect, and every taken one shows its effect."""

from __future__ import annotations

import importlib
import inspect
import json
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from feedmill.errors import ConfigError
from feedmill.indexing.prepare import prepare
from helpers.tars import make_shards

torch = pytest.importorskip("torch")

from feedmill.compat.energon.dataset_config import get_dataset_from_config  # noqa: E402
from feedmill.compat.energon.flavors.jsonl import (  # noqa: E402
    CrudeJsonlDatasetFactory,
    DefaultCrudeJsonlDatasetFactory,
)
from feedmill.compat.energon.flavors.webdataset.structs import DatasetSubset  # noqa: E402
from feedmill.compat.energon.metadataset import load_dataset  # noqa: E402

from compat.energon import scripted  # noqa: E402
from feedmill.compat import energon  # noqa: E402
from feedmill.compat.energon import settings as tables  # noqa: E402
from feedmill.compat.energon.datasets import tolerance_of  # noqa: E402
from feedmill.formats.settings import Fate, Table  # noqa: E402

WHERE = energon.WorkerConfig(rank=0, world_size=1, num_workers=0)
COUNT = 48
FIELDS = {"text": "txt"}
GOLDEN = Path(__file__).parents[2] / "golden/settings/energon.json"
TRAIN = {"worker_config": WHERE, "batch_size": 1, "shuffle_buffer_size": None, "max_samples_per_sequence": None}


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight shards of six samples, crude, as the data of the finding."""
    root = make_shards(tmp_path_factory.mktemp("coco") / "d", [6] * 8, parts=("txt", "json"))
    prepare(root, split_ratio="1,0,0")
    described(root)
    return root


def described(root: Path, more: str = "") -> Path:
    text = f"__module__: megatron.energon\n__class__: CrudeWebdataset\n{more}"
    (root / ".nv-meta" / "dataset.yaml").write_text(text)
    return root


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(40)))
    prepare(path)
    return path


def numbers(dataset: Any, most: int = 300) -> list[int]:
    loader = energon.get_loader(dataset)
    found = []
    for sample in islice(loader, most):
        keys = sample["__key__"] if isinstance(sample, dict) else sample.__key__
        found += [int(key.lstrip("s")) for key in (keys if isinstance(keys, list) else [keys])]
    loader.close()
    return found


def factory(path: Path, **options: Any) -> list[int]:
    return numbers(get_dataset_from_config(path, worker_config=WHERE, **options).build())


def train(path: Any, **options: Any) -> list[int]:
    return numbers(energon.get_train_dataset(path, **{**TRAIN, "repeat": False, **options}))


def metadataset(folder: Path, node: str) -> Path:
    path = folder.parent / f"mix{abs(hash(node))}.yaml"
    path.write_text(f"__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train: {node}\n")
    return path


SUBSETS = [
    ({"range": (0.0, 0.25)}, range(12)),
    ({"absolute_range": (3, 8)}, range(3, 8)),
    ({"absolute_range": (40, None)}, range(40, 48)),
    ({"absolute_range": (8, 48), "range": (0.5, 1)}, range(28, 48)),
    ({"range": (0, 0.29)}, range(13)),
]


@pytest.mark.parametrize(("given", "expected"), SUBSETS)
def test_subsets_are_those_of_energon(coco: Path, given: dict[str, Any], expected: range) -> None:
    """The numbers are those that Energon 7.4.1 gave for the same shards."""
    subset = DatasetSubset(**given)
    assert factory(coco, training=False, subset=subset) == list(expected)
    assert sorted(factory(coco, training=True, subset=subset)) == list(expected)
    assert sorted(train(coco, subset=subset)) == list(expected)
    validation = energon.get_val_dataset(coco, split_part="train", worker_config=WHERE, batch_size=1, subset=subset)
    assert numbers(validation) == list(expected)
    options: dict[str, Any] = {"training": False, "split_part": "train", "worker_config": WHERE, "subset": subset}
    (loaded,) = load_dataset(coco).get_datasets(**options).datasets
    assert numbers(loaded.dataset.build()) == list(expected) and len(loaded.dataset) == len(expected)
    assert numbers(load_dataset(coco).get_dataset(**options).build()) == list(expected)
    crude = energon.CrudeWebdataset(coco, training=False, worker_config=WHERE, subset=subset)
    assert numbers(crude.build()) == list(expected) and len(crude) == len(expected)
    assert crude.config()["subset"] == subset.config()
    ((_, source),) = energon.get_val_datasets(
        coco, split_part="train", worker_config=WHERE, batch_size=1, subset=subset
    )
    assert numbers(source.build()) == list(expected)


def test_a_subset_of_a_metadataset_is_that_of_each_dataset(coco: Path) -> None:
    half = DatasetSubset(range=(0, 0.5))
    inner = metadataset(coco, f"{{blend_epochized: [{{path: {coco.name}, subset: {{range: ['50%', '100%']}}}}]}}")
    assert sorted(train(inner, subset=half)) == list(range(24, 36))
    numbered = metadataset(coco, f"{{blend_epochized: [{{path: {coco.name}, subset: {{range: [8, end]}}}}]}}")
    assert sorted(train(numbered, subset=half)) == list(range(8, 28))
    found = load_dataset(inner).get_datasets(training=False, split_part="train", worker_config=WHERE, subset=half)
    assert numbers(found.datasets[0].dataset.build()) == list(range(24, 36))
    unasked = load_dataset(inner).get_datasets(training=False, split_part="train", worker_config=WHERE)
    assert numbers(unasked.datasets[0].dataset.build()) == list(range(24, 48))
    ((_, source),) = energon.get_val_datasets(inner, split_part="train", worker_config=WHERE, batch_size=1)
    assert numbers(source.build()) == list(range(24, 48))
    with pytest.raises(ConfigError, match="an absolute range cannot be given for a metadataset"):
        train(inner, subset=DatasetSubset(absolute_range=(0, 5)))
    first = coco.parent / "v1.yaml"
    first.write_text(f"splits:\n  train:\n    datasets: [{{path: {coco.name}}}]\n")
    listed = load_dataset(first).get_datasets(
        training=False, split_part="train", worker_config=WHERE, subset=DatasetSubset(absolute_range=(3, 8))
    )
    assert numbers(listed.datasets[0].dataset.build()) == list(range(3, 8))


def test_excluded_samples_count_in_subsets(coco: Path) -> None:
    """The samples are those of Energon 7.4.1, whose subsets count what the split file excludes."""
    text = (coco / ".nv-meta" / "split.yaml").read_text()
    other = coco / ".nv-meta" / "without.yaml"
    other.write_text(text.replace("exclude: []", "exclude: [shards/shard_000.tar/s00001]"))
    for given, expected in (
        ({"absolute_range": (0, 5)}, [0, 2, 3, 4]),
        ({"range": (0, 0.5)}, [0, *range(2, 24)]),
        ({"range": (0.5, 1)}, range(24, 48)),
    ):
        subset = DatasetSubset(**given)
        assert factory(coco, training=False, subset=subset, split_config="without.yaml") == list(expected)
        assert sorted(train(coco, subset=subset, split_config="without.yaml")) == list(expected)
    node = f"path: {coco.name}, split_config: without.yaml, subset: {{range: [0, 5]}}"
    assert sorted(train(metadataset(coco, f"{{{node}}}"))) == [0, 2, 3, 4]
    with pytest.raises(ConfigError, match="has only excluded samples"):
        factory(coco, subset=DatasetSubset(absolute_range=(1, 2)), split_config="without.yaml")


@pytest.mark.parametrize(
    ("subset", "words"),
    [
        (DatasetSubset(range=(0.5, 0.5)), "is empty or outside the 48 samples"),
        (DatasetSubset(absolute_range=(3, 80)), "is empty or outside the 48 samples"),
        (DatasetSubset(absolute_range=(-3, 8)), "is empty or outside the 48 samples"),
        ((3, 8), "subset is a tuple, expected a DatasetSubset"),
    ],
)
def test_impossible_subsets(coco: Path, subset: Any, words: str) -> None:
    for call in (factory, train):
        with pytest.raises(ConfigError, match=words):
            call(coco, subset=subset)


STORED = list(range(COUNT))


def test_passes_and_stored_order(coco: Path) -> None:
    assert factory(coco, shuffle_over_epochs=None, parallel_shard_iters=1) == STORED
    assert train(coco, shuffle_over_epochs_multiplier=None) == STORED
    for found in (factory(coco, shuffle_over_epochs=2), train(coco, shuffle_over_epochs_multiplier=2)):
        assert len(found) == 2 * COUNT and sorted(found) == sorted(STORED * 2) and found[:COUNT] != STORED
    assert factory(coco, training=False, shuffle_over_epochs=2) == STORED
    with pytest.warns(UserWarning, match="shuffle_over_epochs=-1 has no effect: each epoch is a permutation"):
        assert len(factory(coco, shuffle_over_epochs=-1)) == 300
    with pytest.warns(UserWarning, match="shuffle_over_epochs_multiplier=-1 has no effect"):
        assert len(train(coco, shuffle_over_epochs_multiplier=-1)) == 300
    for bad in (0, -2, True, "2"):
        with pytest.raises(ConfigError, match="is not a number from 1, -1 or None"):
            factory(coco, shuffle_over_epochs=bad)
    loaded = load_dataset(coco).get_datasets(
        training=True, split_part="train", worker_config=WHERE, shuffle_over_epochs_multiplier=None
    )
    assert numbers(loaded.datasets[0].dataset.build()) == STORED


@pytest.mark.parametrize(
    ("entry", "multiplier", "count"),
    [
        ("{path: %s, shuffle_over_epochs_multiplier: 2}", 1, 96),
        ("{blend_epochized: [{path: %s, shuffle_over_epochs_multiplier: 2}]}", 1, 96),
        ("{blend_epochized: [{path: %s, repetitions: 1.5, shuffle_over_epochs_multiplier: 2}]}", 1, 120),
        ("{blend_epochized: [{path: %s, repetitions: 1.5}]}", 2, 120),
        ("{blend_epochized: [{path: %s, shuffle_over_epochs_multiplier: 2}]}", 2, 192),
    ],
)
def test_passes_of_metadatasets(coco: Path, entry: str, multiplier: int, count: int) -> None:
    """The counts are those of Energon 7.4.1."""
    path = metadataset(coco, entry % coco.name)
    found = train(path, shuffle_over_epochs_multiplier=multiplier)
    assert len(found) == count and set(found) == set(STORED)
    loaded = load_dataset(path).get_datasets(
        training=True, split_part="train", worker_config=WHERE, shuffle_over_epochs_multiplier=multiplier
    )
    passes = len(numbers(loaded.datasets[0].dataset.build())) // COUNT
    repeated = loaded.datasets[0].repetitions or 1
    assert passes == (2 if "multiplier" in entry else 1) * multiplier
    assert count == COUNT * (int(repeated) * passes + repeated % 1)


def test_draws_with_replacement_have_no_epochs(coco: Path, caplog: pytest.LogCaptureFixture) -> None:
    entry = f"path: {coco.name}, shuffle_over_epochs_multiplier: -1"
    with pytest.raises(ConfigError, match=r"mix.*yaml:4: draws with replacement \(-1\) never end"):
        train(metadataset(coco, f"{{blend_epochized: [{{{entry}}}]}}"))
    train(metadataset(coco, f"{{blend: [{{{entry}}}]}}"), repeat=True)
    assert "shuffle_over_epochs_multiplier -1 has no effect: each epoch is a permutation" in caplog.text


def test_sequences_and_shards_side_by_side(coco: Path) -> None:
    for call, options in ((factory, {}), (train, {})):
        one = call(coco, parallel_shard_iters=1, **options)
        assert [one[place : place + 6] for place in range(0, COUNT, 6)] == [
            list(range(first, first + 6)) for first in one[::6]
        ]
        two = call(coco, parallel_shard_iters=1, max_samples_per_sequence=2, **options)
        starts = two[::2]
        assert [b - a for a, b in zip(starts, two[1::2], strict=True)] == [1] * 24 and starts != sorted(starts)
        assert {a // 6 for a in starts[:3]} != {starts[0] // 6}  # not one shard after another
        both = call(coco, parallel_shard_iters=2, **options)
        assert both[0] // 6 != both[1] // 6 and both[0] + 1 == both[2]


def test_a_buffer_of_one_is_none(coco: Path) -> None:
    assert train(coco, shuffle_buffer_size=1) == train(coco) != train(coco, shuffle_buffer_size=2)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("shuffle_over_epochs: null\nparallel_shard_iters: 1\n", lambda found: found == STORED),
        ("shuffle_over_epochs: 2\n", lambda found: sorted(found) == sorted(STORED * 2)),
        (
            "max_samples_per_sequence: 2\nparallel_shard_iters: 1\n",
            lambda found: found[1] == found[0] + 1 != found[2] - 1,
        ),
        ("split_part: val\n", None),
    ],
)
def test_a_description_overrides_the_call(coco: Path, said: str, expected: Any) -> None:
    described(coco, said)
    try:
        if expected is None:
            with pytest.raises(ConfigError, match="no samples"):
                train(coco)
            return
        for found in (factory(coco, shuffle_over_epochs=1, parallel_shard_iters=4), train(coco)):
            assert expected(found)
    finally:
        described(coco)


def test_parts(coco: Path, rows: Path) -> None:
    for keep in (["txt"], "txt".__eq__):
        sample = next(iter(energon.get_loader(get_dataset_from_config(
            coco, training=False, worker_config=WHERE, part_filter=keep).build())))  # fmt: skip
        assert "txt" in sample and "json" not in sample
        batch = next(iter(energon.get_loader(energon.get_train_dataset(coco, **TRAIN, part_filter=keep))))
        assert "txt" in batch and "json" not in batch
    described(coco, "part_filter: [json]\n")
    sample = next(iter(get_dataset_from_config(coco, worker_config=WHERE, part_filter=["txt"]).build()))
    described(coco)
    assert "json" in sample and "txt" not in sample
    jsonl: dict[str, Any] = {"training": False, "worker_config": WHERE}
    for kept in (["json"], None, lambda name: name == "json"):
        assert len(numbers(CrudeJsonlDatasetFactory(rows, part_filter=kept, **jsonl).build())) == 40
    for made in (CrudeJsonlDatasetFactory(rows, part_filter=lambda _: False, **jsonl).build,
                 lambda: get_dataset_from_config(rows, part_filter=["txt"], **jsonl)):  # fmt: skip
        with pytest.raises(ConfigError, match="'part_filter' leaves no samples"):
            made()


def test_rows(rows: Path) -> None:
    options: dict[str, Any] = {"training": False, "worker_config": WHERE}
    quarter = DatasetSubset(range=(0, 0.25))
    for made in (CrudeJsonlDatasetFactory(rows, subset=quarter, **options),
                 DefaultCrudeJsonlDatasetFactory(rows, subset=quarter, decoder=None, **options),
                 get_dataset_from_config(rows, subset=quarter, split_part="any", decoder=None, **options)):  # fmt: skip
        assert numbers(made.build()) == list(range(10))
    assert next(iter(CrudeJsonlDatasetFactory(rows, **options).build()))["json"] == b'{"n": 0}'
    decoded = next(iter(DefaultCrudeJsonlDatasetFactory(rows, subflavors={"a": 1}, **options).build()))
    assert decoded["json"] == {"n": 0} and decoded["__subflavors__"] == {"a": 1}
    options["training"] = True
    assert numbers(CrudeJsonlDatasetFactory(rows, **options).build()) == list(range(40))  # one shard
    pieces = numbers(CrudeJsonlDatasetFactory(rows, max_samples_per_sequence=4, **options).build())
    assert sorted(pieces) == list(range(40)) != pieces
    for name in ("dataset_config", "split_config"):
        with pytest.raises(ConfigError, match=f"a JSONL file has no {name}"):
            get_dataset_from_config(rows, worker_config=WHERE, **{name: "x.yaml"})


def test_subflavors_and_types(coco: Path) -> None:
    described(coco, "subflavors: {a: yaml, b: yaml}\n")
    dataset = energon.get_train_dataset(coco, **TRAIN, subflavors={"a": "call"}, sample_type=energon.CrudeSample)
    assert next(iter(dataset))["__subflavors__"] == {"a": ["call"], "b": ["yaml"]}
    outer = metadataset(coco, f"{{path: {coco.name}, subflavors: {{b: file}}}}")
    dataset = energon.get_train_dataset(outer, **TRAIN, subflavors={"a": "call"})
    assert next(iter(dataset))["__subflavors__"] == {"a": ["call"], "b": ["file"]}
    loaded = load_dataset(coco, subflavors={"a": "loader", "c": 1}).get_dataset(
        training=False, split_part="train", worker_config=WHERE, subflavors={"c": 2}
    )
    described(coco)
    assert loaded.subflavors == {"a": "loader", "b": "yaml", "c": 2}
    for call in (train, factory):
        with pytest.raises(ConfigError, match="the samples are no VQASample"):
            call(coco, sample_type=energon.VQASample)


def test_the_settings_of_load_dataset(coco: Path) -> None:
    assert len(load_dataset(coco, split_part="train").get_dataset(training=False, worker_config=WHERE)) == COUNT
    with pytest.raises(ConfigError, match="no split is given"):
        load_dataset(coco).get_dataset(training=False, worker_config=WHERE)
    path = metadataset(coco, f"{{path: {coco.name}}}")
    for name in ("split_part", "dataset_config", "split_config"):
        with pytest.raises(ConfigError, match=f"'{name}' of load_dataset is for a single dataset"):
            load_dataset(path, **{name: "x"})
    with pytest.raises(ConfigError, match="a metadataset has several datasets"):
        load_dataset(path).get_dataset(training=False, split_part="train", worker_config=WHERE)
    with pytest.raises(ConfigError, match="content of a metadataset has no 'traverse' here"):
        load_dataset({"splits": {}}).traverse(split_part="train")


def test_failures_of_wrappers_are_counted(coco: Path) -> None:
    """The tolerance of a wrapper holds also where its function becomes a hook, and with those of the inner hooks."""

    class Task(energon.DefaultTaskEncoder):
        @energon.stateless(failure_tolerance=5)
        def encode_sample(self, sample: Any) -> Any:
            return sample

    inner = energon.get_train_dataset(coco, **{**TRAIN, "batch_size": None}, task_encoder=Task())
    where: dict[str, Any] = {"worker_config": WHERE}
    wrapped = [
        (energon.MapDataset(inner, len, failure_tolerance=3, **where), 3),
        (energon.BatchDataset(inner, 1, list, failure_tolerance=4, **where), 4),
        (energon.MapDataset(energon.MapDataset(inner, len, failure_tolerance=2, **where), len, **where), 2),
        (energon.MapDataset(inner, len, **where), 5),
        (energon.GroupBatchDataset(inner, 1, len, list, failure_tolerance=0, **where), 5),
        (energon.PackingDataset(inner, 2, list, list, sample_encoder_failure_tolerance=1, **where), 1),
    ]
    for dataset, count in wrapped:
        plain = dataset.plain()
        assert plain is not None and tolerance_of(plain.task_encoder) == count


# The signatures


def objects(table: Table) -> list[tuple[str, Any, list[str]]]:
    """Return the functions and classes of a table with the parameters that they have in Energon."""
    found = []
    for kind, file, name, _, names in json.loads(GOLDEN.read_text())[table.face]:
        if kind not in ("parameters", "fields"):
            continue
        first, _, method = name.removesuffix(".__init__").partition(".")
        module = file.removeprefix("megatron/energon/").removesuffix(".py").replace("/", ".")
        if first == "WebdatasetPreparator":
            first, module = "BaseWebdatasetFactory", "flavors"
        elif first == "JsonlPreparator":
            first, module = "CrudeJsonlDatasetFactory", "flavors"
        elif file.endswith(("worker.py", "loader.py")) and hasattr(energon, first):
            module = ""
        home = energon if not module else importlib.import_module(f"feedmill.compat.energon.{module}")
        owner = getattr(home, first)
        found.append((name, getattr(owner, method) if method else owner, names))
    return found


FACES = [
    pytest.param(table, made, names, id=f"{table.face}: {name}")
    for table in tables.TABLES
    for name, made, names in objects(table)
]


def keywords(made: Any) -> set[str]:
    """Return the parameters of a function or class, and of the classes that it passes its keywords on to."""
    if not isinstance(made, type):
        return set(inspect.signature(made).parameters)
    return {name for cls in made.__mro__ if "__init__" in cls.__dict__
            for name in inspect.signature(cls.__init__).parameters}  # fmt: skip


@pytest.mark.parametrize(("table", "made", "names"), FACES)
def test_signatures_have_what_energon_has(table: Table, made: Any, names: list[str]) -> None:
    own = keywords(made)
    opened = {"words", "options", "settings", "order"} & own  # typed, and closed by the table
    for name in names:
        if not name.startswith("*") and table.settings[name].fate is Fate.MAPPED:
            assert name in own or opened, name


@pytest.mark.parametrize(("table", "made", "names"), FACES)
def test_other_words_are_an_error(table: Table, made: Any, names: list[str]) -> None:
    name = getattr(made, "__name__", "")
    given: dict[str, Any] = {"path": "x"} if "Factory" in name or "Crude" in name else {}
    if name.startswith("Default") and "Jsonl" not in name:
        given["field_map"] = FIELDS
        made = type(name, (made,), {"__sample_type__": energon.TextSample})
    elif name.startswith("Standard"):
        given |= {"field_map": FIELDS, "sample_type": energon.TextSample}
    elif "Jsonl" in name:
        given |= {"training": True, "worker_config": WHERE}
    wrong = next(name for name in reversed(names) if not name.startswith("*"))
    with pytest.raises(TypeError, match=f"{wrong}_z.*has no option"):
        made(**given, **{f"{wrong}_z": 1})


REFUSED = [
    (energon.get_train_dataset, tables.TRAIN),
    (energon.get_val_dataset, tables.VALIDATION),
    (energon.get_val_datasets, tables.VALIDATION),
    (get_dataset_from_config, tables.OPENING),
    (energon.BaseWebdatasetFactory.prepare_dataset, tables.PREPARE),
]


@pytest.mark.parametrize(("call", "table"), REFUSED)
def test_what_is_refused_is_named(coco: Path, call: Any, table: Table) -> None:
    names = table.names(Fate.REFUSED)
    assert names
    for name in names:
        with pytest.raises(ConfigError, match=f"{call.__name__} does not support {name}="):
            call(coco, **{name: "odd"})


def test_what_has_no_effect_is_reported_where_the_page_says_so(coco: Path) -> None:
    dataset = energon.get_train_dataset(coco, **TRAIN)
    validation: dict[str, Any] = {"split_part": "train", "worker_config": WHERE, "batch_size": 1}
    calls: list[tuple[Table, Any]] = [
        (tables.TRAIN, lambda **given: energon.get_train_dataset(coco, **TRAIN, **given)),
        (tables.VALIDATION, lambda **given: energon.get_val_dataset(coco, **validation, **given)),
        (tables.LOADERS, lambda **given: energon.get_savable_loader(dataset, **given)),
        (tables.LOADERS, lambda **given: energon.BasicDataLoader(dataset, **given)),
        (tables.WORKERS, lambda **given: energon.WorkerConfig(rank=0, world_size=1, num_workers=0, **given)),
    ]
    for table, call in calls:
        for name in table.names(Fate.NO_EFFECT):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call(**{name: energon.log_exception if name == "restore_error_handler" else 1})
            said = [str(each.message) for each in caught if f"{name} has no effect" in str(each.message)]
            assert len(said) == table.settings[name].warns, name


def test_hooks_of_the_pipeline_are_refused(coco: Path) -> None:
    for name in tables.HOOKS.names(Fate.REFUSED):
        task = type("Task", (energon.DefaultTaskEncoder,), {name: lambda *_, **__: None})()
        with pytest.raises(ConfigError, match=f"Task.{name} is unsupported"):
            energon.get_train_dataset(coco, **TRAIN, task_encoder=task)
    cooking = type(
        "Task", (energon.DefaultTaskEncoder,), {"cook_crude_sample": lambda self, sample, cooker, aux: sample}
    )
    with pytest.raises(ConfigError, match="cook_crude_sample is unsupported: it takes a sample"):
        energon.get_train_dataset(coco, **TRAIN, task_encoder=cooking())
    dataset = energon.get_train_dataset(coco, **TRAIN)
    for name in ("__iter__", "save_state", "restore_sample"):
        wrapper = type("Wrapper", (energon.RepeatDataset,), {name: lambda self: iter(())})
        with pytest.raises(ConfigError, match=f"Wrapper.{name} is unsupported"):
            wrapper(dataset, worker_config=WHERE)
    for name in tables.METHODS.names(Fate.REFUSED):
        own = type("Own", (energon.CrudeWebdataset,), {name: lambda *_: None})
        with pytest.raises(ConfigError, match=f"Own.{name} is unsupported"):
            own(coco)


def test_the_hook_that_makes_batches(coco: Path) -> None:
    class Task(energon.DefaultTaskEncoder):
        def _batch(self, samples: list[Any], result_type: Any, actions: Any = None, default_action: Any = None) -> Any:
            assert default_action is None
            made = super()._batch(samples, result_type, {**(actions or {}), "txt": len}, lambda values: values[0])
            return {**made, "own": True}

    batch = next(iter(energon.get_loader(energon.get_train_dataset(
        coco, **{**TRAIN, "batch_size": 3}, task_encoder=Task()))))  # fmt: skip
    assert batch["own"] and batch["txt"] == 3 and isinstance(batch["json"], dict)


def test_a_filter_that_cannot_be_sent_to_processes_runs_in_threads(coco: Path) -> None:
    where = energon.WorkerConfig(rank=0, world_size=1, num_workers=2)
    options: dict[str, Any] = {**TRAIN, "worker_config": where, "task_encoder": scripted.CaptioningTask()}
    for keep, processes in ((["txt"], True), (lambda name: name == "txt", False)):
        loader = energon.get_loader(energon.get_train_dataset(coco, **options, part_filter=keep))
        assert loader.loader.workers.processes == processes
        loader.close()
