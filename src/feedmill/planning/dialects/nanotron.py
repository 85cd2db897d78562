"""Translate Nanotron's ``data_stages`` with Nanosets to a recipe.

A stage has a ``dataset_folder`` in one of these forms: a path; a list of paths, whose samples are shuffled together,
each once per epoch; paths with weights, as a mapping or as a list with ``dataset_weights``. A stage begins at its
``start_training_step`` (the first at 1).

If the file has a ``sequence_length``, the plan matches Nanotron's `Nanoset` exactly: windows of ``sequence_length + 1``
tokens in the Nanoset's order, where each stage is a separate Nanoset that begins with its first sample. Without it, the
plan is a mixture of the folders' documents, in Feedmill's own exact order.

Since April 2025, Nanotron's trainer uses a `BlendableDataset` instead. A configuration with a key that only it knows
(`CURRENT`; all of them are in the configurations that it saves) is that of such a run: its folders are read in order,
blended by weight without shuffling, and a stage continues each folder after the samples of earlier stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from feedmill.errors import ConfigError, misspelled
from feedmill.formats.settings import Origin, Table, alike, mapped, no_effect, refused
from feedmill.formats.yamls import Marks
from feedmill.kernels.order.greedy import greedy
from feedmill.planning.dialects import VALIDATION, Place, Translation
from feedmill.planning.nodes.base import unique_names
from feedmill.planning.orders.nanoset import normalized

_CONFIG = "nanotron/config/config.py"
_HUB = refused("texts of Hugging Face datasets: tokenize them with `feedmill compat nanotron preprocess_data hf`")
_TRAINING = no_effect("about training")
_SAME = no_effect("the samples and their order are the same")
_TOKENIZER = no_effect("token files are tokenized already")


CONFIG = Table(
    face="a configuration",
    origin=(Origin("fields", _CONFIG, "Config", skip=("tokens", "parallelism", "data_stages")),),
    settings=alike(
        _TRAINING,
        "general model tokenizer checkpoints logging metrics_logging optimizer profiler lighteval s3_upload",
    ),
    open=True,
)
STAGE = Table(
    face="`data_stages`",
    origin=(Origin("fields", _CONFIG, "DatasetStageArgs", skip=("data",)),),
    settings={
        "name": mapped("name of the stage"),
        "start_training_step": mapped("first step of the stage"),
        "sequence_length": mapped("tokens of a sample, without the last target; the same in all stages"),
    },
)
DATA = Table(
    face="`data_stages: data`",
    origin=(Origin("fields", _CONFIG, "DataArgs", skip=("dataset",)),),
    settings={
        "seed": mapped("seed of the order; 42 without it"),
        "num_loading_workers": no_effect("the loader has its own `workers`"),
    },
)
DATASET = Table(
    face="`data_stages: data: dataset`",
    origin=(
        Origin("fields", _CONFIG, "NanosetDatasetsArgs"),
        Origin("fields", _CONFIG, "PretrainDatasetsArgs"),
        Origin("fields", _CONFIG, "SFTDatasetsArgs"),
    ),
    settings={
        "dataset_folder": mapped("the folders, or folders with weights"),
        "dataset_weights": mapped("weights of the folders"),
        "dataset_read_path": mapped("copies that are read instead of the folders"),
        "token_size_in_bytes": mapped("bytes per token; an error if a file has another size"),
        "return_positions": mapped(
            "samples have `positions`, from the index of documents; true without it, as in Nanotron, which finds"
            " documents by the end-of-text token instead"
        ),
        "shuffle_files": mapped("files of a folder are permuted with the seed"),
        **alike(_TOKENIZER, "tokenizer_name vocab_size"),
        "skip_in_stream": no_effect("a loader starts at any sample at once"),
        "pad_samples_to_global_batch_size": refused("samples are not repeated to fill a batch"),
        "dataset_max_tokens": refused("folders are not cut: write `subset` in a recipe"),
        "use_old_brrr_dataloader": refused("the order of this older loader is not reproduced"),
        **alike(
            _HUB,
            "hf_dataset_or_datasets hf_dataset_splits hf_dataset_config_name dataset_processing_num_proc_per_process"
            " dataset_overwrite_cache text_column_name sft_dataloader debug_max_samples",
        ),
    },
)
TOKENS = Table(
    face="`tokens`",
    origin=(Origin("fields", _CONFIG, "TokensArgs"),),
    settings={
        "sequence_length": mapped("tokens of a sample, without the last target"),
        "train_steps": mapped("last step of the last stage"),
        **alike(mapped("factor of the global batch"), "micro_batch_size batch_accumulation_per_replica"),
        **alike(_TRAINING, "val_check_interval limit_val_batches limit_test_batches"),
    },
)
PARALLELISM = Table(
    face="`parallelism`",
    origin=(Origin("fields", "nanotron/config/parallelism_config.py", "ParallelismArgs"),),
    settings={
        "dp": mapped("factor of the global batch"),
        **alike(
            _SAME,
            "pp tp pp_engine tp_mode tp_linear_async_communication recompute_layer tp_recompute_allgather"
            " expert_parallel_size context_parallel_size",
        ),
    },
)
TABLES = (CONFIG, STAGE, DATA, DATASET, TOKENS, PARALLELISM)


def without_empty(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a dataset with None for a list in which nothing is set, such as ``[0, 0]``."""
    return {
        name: None if isinstance(value, list) and not any(value) and name != "dataset_weights" else value
        for name, value in dataset.items()
    }


_DEFAULT_SEED = 42
"""Nanotron's default seed of a stage."""

CURRENT = (
    "dataset_read_path", "tokenizer_name", "vocab_size", "skip_in_stream", "pad_samples_to_global_batch_size",
    "dataset_max_tokens", "shuffle_files", "use_old_brrr_dataloader",
)  # fmt: skip
_FLAGS = ("return_positions", "shuffle_files")
_WHOLE = (
    "sequence_length", "token_size_in_bytes", "train_steps", "micro_batch_size", "batch_accumulation_per_replica", "dp",
)  # fmt: skip
_MOST = 1 << 31
"""What no number of steps, samples or ranks reaches."""
_UNORDERED = ("dataset_folder", "dataset_weights")
"""What a mixture of documents, without a sequence length, has of a dataset."""


def translate(data: Any, marks: Marks | None, file: str, *, mode: str) -> Translation:
    """Return the recipe of a configuration, or of its ``data_stages`` alone.

    Raises:
        ConfigError: stages are out of order or have duplicate names, folders are missing, or weights do not match the
            folders.
    """
    reader = _Stages(marks, file)
    if mode == VALIDATION:
        raise reader.error(("data_stages",), "Nanotron's stages are for training only", "Omit 'mode'.")
    return reader.translate(data)


class _Stages:
    def __init__(self, marks: Marks | None, file: str) -> None:
        self.marks, self.file = marks, file
        self.result = Translation(file)

    def translate(self, data: Any) -> Translation:
        stages = data.get("data_stages") if isinstance(data, Mapping) else None
        if not isinstance(stages, list) or not stages:
            raise self.error(("data_stages",), f"expected a list of stages, found {stages!r:.60}", "Give at least one.")
        starts = self.starts(stages)
        self.check(data, stages)
        length = self.sequence_length(data, stages)
        if length is not None:
            nanosets = self.nanosets(data, stages, starts, length)
            nanosets.notes = self.result.notes
            return nanosets
        self.note_documents(data, stages)
        seed = self.data_of(stages[0], ("data_stages", 0)).get("seed")
        if seed is not None:
            self.result.data["seed"] = seed
        if len(stages) == 1:
            self.result.data |= self.single(stages[0])
        else:
            self.result.data |= self.several(data, stages, starts)
        return self.result

    def check(self, config: Mapping[str, Any], stages: list[Any]) -> None:
        """Compare all settings with the tables, and note those that have no effect.

        Raises:
            ConfigError: a setting is refused, unknown or misspelled.
        """
        sections = ("data_stages", "tokens", "parallelism")
        others = {key: value for key, value in config.items() if key not in sections}
        found: list[tuple[Table, Place, Any]] = [(CONFIG, (), others)]
        found += [(table, (key,), config.get(key)) for key, table in (("tokens", TOKENS), ("parallelism", PARALLELISM))]
        for number, stage in enumerate(stages):
            place: Place = ("data_stages", number)
            data = stage.get("data")
            dataset = data.get("dataset") if isinstance(data, Mapping) else None
            found += [(STAGE, place, _without(stage, "data")), (DATA, (*place, "data"), _without(data, "dataset"))]
            found.append((DATASET, (*place, "data", "dataset"), dataset))
        notes: dict[str, None] = {}  # each once, in order
        wrong = misspelled(others, sections)
        if wrong is not None and wrong[0] not in CONFIG.settings:
            raise self.error((wrong[0],), f"unknown setting {wrong[0]!r}", wrong[1])
        for table, place, given in found:
            if isinstance(given, Mapping):
                settings = without_empty({str(name): value for name, value in given.items()})
                taken = table.take(settings, partial(self.below, place))
                notes.update(dict.fromkeys(taken.notes))
                self.check_values(taken.used, place)
            elif given is not None and place in (("tokens",), ("parallelism",)):
                raise self.error(place, f"{place[0]!r} must be a mapping, found {given!r:.60}", "Write its settings.")
        self.result.notes = list(notes)

    def check_values(self, used: Mapping[str, Any], place: Place) -> None:
        """Raise `ConfigError` for flags and numbers of another type, such as text that says ``false``."""
        for name, value in used.items():
            if name in _FLAGS and not isinstance(value, bool | None):
                raise self.error((*place, name), f"{name!r} must be true or false, found {value!r:.60}", "Set one.")
            is_whole = isinstance(value, int) and not isinstance(value, bool) and value < _MOST
            if name in _WHOLE and value is not None and not is_whole:
                what = f"{name!r} must be a whole number below {_MOST:,}, found {value!r:.60}"
                raise self.error((*place, name), what, "Give a number.")

    def below(self, place: Place, name: str) -> str:
        return self.at((*place, name))

    def note_documents(self, config: Mapping[str, Any], stages: list[Any]) -> None:
        """Note what a mixture of documents does not follow."""
        unused: dict[str, None] = {}
        for number, stage in enumerate(stages):
            dataset = self.data_of(stage, ("data_stages", number)).get("dataset")
            used = DATASET.take(without_empty(dataset)).used if isinstance(dataset, Mapping) else {}
            unused.update(dict.fromkeys(name for name in used if name not in _UNORDERED))
        if isinstance(config.get("tokens"), Mapping) and "train_steps" in config["tokens"]:
            unused["train_steps"] = None
        if unused:
            self.result.notes.append(
                f"not used: {', '.join(unused)}: without 'sequence_length', the recipe mixes documents without end"
            )

    def sequence_length(self, data: Mapping[str, Any], stages: list[Any]) -> int | None:
        """Return the tokens in a sample, without the additional last target; None if the file does not set it."""
        tokens = data.get("tokens")
        whole = tokens.get("sequence_length") if isinstance(tokens, Mapping) else None
        found = [whole if stage.get("sequence_length") is None else stage["sequence_length"] for stage in stages]
        for number, length in enumerate(found):
            if length != found[0]:
                place = ("data_stages", number, "sequence_length")
                raise self.error(place, f"the stages differ in length: {found[0]} and {length}", "Run them one by one.")
        return found[0]

    def nanosets(self, config: Mapping[str, Any], stages: list[Any], starts: list[int], length: int) -> Translation:
        """Return the stages as Nanosets, one after another."""
        batch = _global_batch(config)
        tokens = config.get("tokens")
        steps = tokens.get("train_steps") if isinstance(tokens, Mapping) else None
        ends = [*starts[1:], steps + 1 if isinstance(steps, int) else None]
        blended = any(self.is_current(stage) for stage in stages)
        read: dict[str, int] = {}  # samples of each folder that earlier stages draw
        made = []
        for number, (stage, start, end) in enumerate(zip(stages, starts, ends, strict=True)):
            place: Place = ("data_stages", number)
            if end is not None and end <= start:
                what = f"the stage starts at step {start}, the training ends after step {end - 1}"
                raise self.error((*place, "start_training_step"), what, "Remove the stage, or train longer.")
            part = self.nanoset(stage, place, length)
            if end is not None and batch is not None:
                part.data["samples"] = (end - start) * batch
            elif len(stages) > 1 or blended:
                raise self.no_length(place, "train_steps, ")
            if blended:
                self.blendable(part, stage, place, read)
            made.append(part)
        if len(made) == 1:
            return made[0]
        self.result.data = {"concat": [], "shuffle": "none", "epochs": 1}
        for number, part in enumerate(made):
            title = str(stages[number].get("name") or f"stage {number + 1}").replace("/", "-")
            self.result.data["concat"].append({"name": title, "recipe": f"stage {number + 1}"})
            self.result.origins[("concat", number)] = self.at(("data_stages", number))
            self.result.nested[("concat", number)] = part
        return self.result

    def nanoset(self, stage: Mapping[str, Any], place: Place, length: int) -> Translation:
        """Return one stage as a separate recipe in the order of a Nanoset."""
        reader = _Stages(self.marks, self.file)
        member = reader.member(stage, place, ())
        data, at = reader.data_of(stage, place), (*place, "data", "dataset")
        kind = next((kind for kind in ("blend", "concat") if kind in member), None)
        folders = member[kind] if kind else [member]
        result = Translation(self.file)
        for where, origin in reader.result.origins.items():
            result.origins[("blend", *where[1:]) if kind else ("blend", 0, *where)] = origin
        windows: dict[str, Any] = {"seq_len": length, "files": "nanotron"}
        if data["dataset"].get("return_positions", True):
            windows["positions"] = True
        if data["dataset"].get("token_size_in_bytes") is not None:
            windows["token_size"] = data["dataset"]["token_size_in_bytes"]
        seed = _DEFAULT_SEED if data.get("seed") is None else data["seed"]
        result.data = {
            "seed": seed,
            "order": "nanoset",
            "blend": [{**folder, "windows": windows} for folder in folders],
        }
        result.origins[("blend",)] = self.at(at)
        result.origins[("seed",)] = self.at((*place, "data"))
        result.origins[("samples",)] = self.at(place)
        return result

    def is_current(self, stage: Any) -> bool:
        """Return whether a stage is that of Nanotron's trainer since April 2025."""
        data = stage.get("data")
        dataset = data.get("dataset") if isinstance(data, Mapping) else None
        return isinstance(dataset, Mapping) and any(key in dataset for key in CURRENT)

    def blendable(self, part: Translation, stage: Mapping[str, Any], place: Place, read: dict[str, int]) -> None:
        """Turn the recipe of a Nanoset into that of a `BlendableDataset`, after the samples read of each folder."""
        dataset, at = self.data_of(stage, place)["dataset"], (*place, "data", "dataset")
        copies = dataset.get("dataset_read_path")
        copies = [copies] if isinstance(copies, str) else copies
        members = part.data["blend"]
        if copies is not None and (not isinstance(copies, list) or len(copies) != len(members)):
            what = f"{len(members)} folders and {copies!r:.60}"
            raise self.error((*at, "dataset_read_path"), what, "Give one path for each folder.")
        paths = [member["path"] for member in members]
        if len(set(paths)) < len(paths):
            raise self.error((*at, "dataset_folder"), "a folder is listed twice", "List each folder once.")
        order = f"nanotron:{part.data['seed']}" if dataset.get("shuffle_files") else "flat"
        part.data["order"] = "blendable"
        weights = [1.0 if member.get("weight") is None else member["weight"] for member in members]
        with self.located((*at, "dataset_weights")):
            _, counts = greedy(normalized(weights), part.data["samples"])
        for number, (member, weight, count) in enumerate(zip(members, weights, counts.tolist(), strict=True)):
            path = member["path"]
            member |= {"weight": weight, "windows": {**member["windows"], "files": order}}
            if read.get(path):
                member["subset"] = [read[path], "end"]
            if copies is not None and copies[number] is not None:
                member["path"] = copies[number]
            read[path] = read.get(path, 0) + count

    @contextmanager
    def located(self, place: Place) -> Iterator[None]:
        """Name the place in errors of the block that name none."""
        try:
            yield
        except ConfigError as error:
            error.file = error.file or self.at(place)
            raise

    def starts(self, stages: list[Any]) -> list[int]:
        """Return the first step of each stage, from 1."""
        starts: list[int] = []
        names: set[str] = set()
        for number, stage in enumerate(stages):
            place: Place = ("data_stages", number)
            if not isinstance(stage, Mapping):
                raise self.error(place, f"a stage must be a mapping, found {stage!r:.60}", "Give it a name and 'data'.")
            start = stage.get("start_training_step")
            here = (*place, "start_training_step")
            if isinstance(start, bool) or not isinstance(start, int):
                raise self.error(here, f"'start_training_step' must be an integer, found {start!r}", "Count from 1.")
            if (start != 1) if not starts else (start <= starts[-1]):
                wanted = f"after step {starts[-1]}" if starts else "at step 1"
                raise self.error(here, f"this stage starts at step {start}", f"It must start {wanted}.")
            if stage.get("name") is not None:
                if str(stage["name"]) in names:
                    raise self.error((*place, "name"), f"two stages are named {stage['name']!r}", "Rename one.")
                names.add(str(stage["name"]))
            starts.append(start)
        return starts

    def single(self, stage: Mapping[str, Any]) -> dict[str, Any]:
        """Return a recipe of one stage."""
        place: Place = ("data_stages", 0)
        member = self.member(stage, place, ("source",))
        kind = next((kind for kind in ("blend", "concat") if kind in member), None)
        if kind is None:
            return {"source": member, "shuffle": "global"}
        moved = {where[1:] if where[:2] == ("source", kind) else where: at for where, at in self.result.origins.items()}
        self.result.origins = moved
        return {"shuffle": "global", **member}

    def several(self, config: Mapping[str, Any], stages: list[Any], starts: list[int]) -> dict[str, Any]:
        """Return a recipe of several stages: all sources in one blend, with weights that change."""
        sources: list[dict[str, Any]] = []
        table: list[dict[str, Any]] = []
        known: dict[tuple[str, int], str] = {}

        def named(wanted: str) -> str:
            return unique_names([*(source["name"] for source in sources), wanted])[-1]

        for number, stage in enumerate(stages):
            place: Place = ("data_stages", number)
            member = self.member(stage, place, ("blend", len(sources)))
            if (
                "concat" in member
            ):  # folders that are shuffled together are a separate source, which no other stage can share
                title = named(str(stage.get("name") or f"stage {number + 1}").replace("/", "-"))
                sources.append({"name": title, **member})
                weights: dict[str, Any] = {title: 1}
            else:
                weights = {}
                times = Counter[str]()
                for each in member.get("blend", [{**member, "weight": 1}]):
                    path = each["path"]
                    again = path, times[path]  # a folder that a stage lists twice is two sources, as in a single stage
                    times[path] += 1
                    if again not in known:
                        known[again] = named(path.strip("/").replace("/", "-"))
                        sources.append({"name": known[again], "path": path})
                    weights[known[again]] = each["weight"]
            entry: dict[str, Any] = {"weights": weights}
            if number + 1 < len(stages):
                entry["steps"] = starts[number + 1] - starts[number]
            table.append(entry)
        self.result.origins = {("blend",): self.at(("data_stages",))}
        for number in range(len(stages)):
            self.result.origins[("stages", number)] = self.at(("data_stages", number))
        batch = _global_batch(config)
        if batch is None:
            raise self.no_length(("data_stages", 0))
        return {"blend": sources, "stages": table, "shuffle": "global", "global_batch": batch}

    def member(self, stage: Mapping[str, Any], place: Place, here: Place) -> dict[str, Any]:
        """Return one stage's folders as the source at `here` of a recipe."""
        at = (*place, "data", "dataset")
        dataset = self.data_of(stage, place).get("dataset")
        folders = dataset.get("dataset_folder") if isinstance(dataset, Mapping) else None
        if not folders:
            raise self.error(
                at, "the stage has no 'dataset_folder'", "Give one folder, a list, or folders with weights."
            )
        assert isinstance(dataset, Mapping)
        weights, beside = dataset.get("dataset_weights"), "dataset_weights"
        if isinstance(folders, Mapping):
            if weights is not None:
                raise self.error((*at, beside), "the folders already have weights", "Remove one of the two.")
            weights, beside = list(folders.values()), "dataset_folder"
            folders = list(folders)
        several = folders if isinstance(folders, list) else [folders]
        if weights is not None and (not isinstance(weights, list) or len(weights) != len(several)):
            count = len(weights) if isinstance(weights, list) else repr(weights)
            raise self.error(
                (*at, beside), f"{len(several)} folders and {count} weights", "Give one weight for each folder."
            )
        kind = "concat" if weights is None else "blend"
        alone = not isinstance(folders, list) and weights is None
        members: list[dict[str, Any]] = []
        for number, folder in enumerate(several):
            own = (*at, "dataset_folder", folder if beside == "dataset_folder" and weights is not None else number)
            if not isinstance(folder, str) or not folder:
                raise self.error(own, f"a folder must be a path, found {folder!r:.60}", "Give its path.")
            if weights is not None and weights[number] is None:
                raise self.error(own, f"{folder} has no weight", "Give it one.")
            members.append({"path": folder})
            base = here if alone else (*here, kind, number)
            self.result.origins[base] = self.at(own)
            if weights is not None:
                members[-1]["weight"] = weights[number]
                self.result.origins[(*base, "weight")] = self.at(
                    own if beside == "dataset_folder" else (*at, beside, number)
                )
        if alone:
            return members[0]
        self.result.origins[(*here, kind)] = self.at((*at, "dataset_folder"))
        return {kind: members, **({"shuffle": "global"} if kind == "concat" else {})}

    def data_of(self, stage: Any, place: Place) -> Mapping[str, Any]:
        data = stage.get("data") if isinstance(stage, Mapping) else None
        if not isinstance(data, Mapping):
            raise self.error((*place, "data"), "the stage has no 'data'", "Give it 'data' with a 'dataset'.")
        return data

    def at(self, place: Place) -> str:
        return self.file if self.marks is None else self.marks.where(place)

    def no_length(self, place: Place, steps: str = "") -> ConfigError:
        what = (
            f"the length of a stage needs 'tokens' with {steps}micro_batch_size and batch_accumulation_per_replica,"
            " and 'parallelism' with dp"
        )
        return self.error(place, what, "Add them, or keep only one stage.")

    def error(self, place: Place, what: str, fix: str) -> ConfigError:
        return ConfigError(what, file=self.at(place), kind="bad-recipe", fix=fix)


def _without(given: Any, key: str) -> Any:
    return {name: value for name, value in given.items() if name != key} if isinstance(given, Mapping) else None


def _global_batch(config: Mapping[str, Any]) -> int | None:
    """Return samples per step, computed from a complete configuration; None if a factor is missing."""
    tokens, parallelism = config.get("tokens"), config.get("parallelism")
    if not isinstance(tokens, Mapping) or not isinstance(parallelism, Mapping):
        return None
    factors = [
        tokens.get("micro_batch_size"), tokens.get("batch_accumulation_per_replica", 1), parallelism.get("dp")
    ]  # fmt: skip
    if not all(isinstance(factor, int) and factor > 0 for factor in factors):
        return None
    micro, accumulated, ranks = factors
    return int(micro * accumulated * ranks)
