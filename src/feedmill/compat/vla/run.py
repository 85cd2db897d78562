"""Plan and load a VLA Foundry run from its configuration, divided into checkpoint windows."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.compat.vla.options import Meaning, get, merged, parse_options, understood
from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.yamls import read_settings
from feedmill.loading.encoder import TaskEncoder, drawn
from feedmill.loading.failures import SkipSample
from feedmill.loading.loader import Loader
from feedmill.planning.dialects.vla import RECIPE, epochs_of, named, nested, samples_per_dataset
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from feedmill.samples.robotics.view import Robotics
from feedmill.samples.vla.modalities import ROBOTICS, Modality, modality
from feedmill.samples.vla.text import Tokenize
from feedmill.storage import join_url, open_store, split_url

logger = logging.getLogger("feedmill")
_COUNTS = {
    "total_train_samples": 0,
    "num_checkpoints": 1,
    "hparams.global_batch_size": 1,
    "data.num_workers": 0,
    "data.prefetch_factor": 0,
    "data.seq_len": 1,
    "data.image_size": 1,
}
"""Integer settings and their minimums."""


@dataclass(frozen=True, slots=True)
class CheckpointWindow:
    """Samples of the run between two checkpoints: positions ``[start, stop)`` of the plan."""

    number: int
    start: int
    stop: int

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.stop - self.start


class VlaRun:
    """A training run of VLA Foundry.

    Args:
        config: the settings, nested or with dotted names.
        base: folder that relative paths are relative to.
        file: the file of the settings, for messages.

    Attributes:
        settings: the meaning of each setting in Feedmill.

    Raises:
        ConfigError: a setting is unknown or invalid.
    """

    def __init__(self, config: Mapping[str, Any], *, base: str = ".", file: str | None = None) -> None:
        self.config = nested(config)
        self.settings: list[Meaning] = understood(self.config, file)
        self.base, self.file = base, file
        for name, least in _COUNTS.items():
            value = get(self.config, name)
            if value is not None and not _whole(value, least):
                raise ConfigError(
                    f"{name} must be a whole number of at least {least}, found {value!r}",
                    file=file,
                    kind="bad-option",
                    fix=f"Set {name}.",
                )
        epochs_of(self.config, file)

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None, options: Sequence[str] = ()) -> VlaRun:
        """Return a run from a YAML file (or None) and dotted options, which override the file.

        Raises:
            NotFound: the file does not exist.
            ConfigError: the file is not a mapping, or a setting is invalid.
        """
        given = parse_options(options)
        if path is None:
            return cls(given)
        url = os.fspath(path)
        folder, name = split_url(url)
        found = read_settings(open_store(folder).read(name), url)
        if not isinstance(found, dict):
            raise ConfigError("the file is not a mapping of settings", file=url, kind="bad-config", fix="Add 'data:'.")
        return cls(merged(nested(found), given), base=folder, file=url)

    @property
    def total(self) -> int | None:
        """Number of samples of the whole run; None if only the data limits it."""
        return self.recipe.model.samples

    @property
    def notes(self) -> list[str]:
        """Notes on unusual but valid settings. Raises `ConfigError` if settings of robotics are invalid."""
        manifests = get(self.config, "data.dataset_manifest") or []
        weights = get(self.config, "data.dataset_weighting") or []
        unread = [
            f"{manifest} has weight 0 and is not read (VLA Foundry reads one shard of it per worker)"
            for manifest, weight in zip(manifests, weights, strict=False)
            if weight == 0
        ]
        robots = ROBOTICS in (get(self.config, "data.dataset_modality") or [])
        return [*unread, *(self._ignored(self.modalities()) if robots else [])]

    def _ignored(self, modalities: Mapping[str, Modality]) -> list[str]:
        """Return notes on what a robotics run skips or ignores."""
        view = modalities.get(ROBOTICS)
        if not isinstance(view, Robotics):
            return []
        data, out = self.config["data"], []
        if not view.settings.images:
            out.append(
                "no cameras: camera_names is not set, and no preprocessing_config.yaml beside the manifests names any."
                " Batches of frames have no pixel_values"
            )
        fields = {*view.settings.proprioception_fields, *view.settings.action_fields}
        normalization = data.get("normalization") or {}
        if fields - set(normalization.get("include_fields") or fields):
            out.append(
                "normalization.include_fields is ignored, as in VLA Foundry: all fields of the run are normalized"
            )
        other = [name for name in normalization.get("field_configs") or {} if name not in fields]
        if other:
            out.append(f"normalization.field_configs is ignored for {', '.join(other)}: the run has no such field")
        return out

    @cached_property
    def samples_per_dataset(self) -> list[int]:
        """Number of samples of each dataset: the sum of ``num_sequences`` in its manifest."""
        return samples_per_dataset(get(self.config, "data.dataset_manifest") or [], self.base)

    @property
    def folders(self) -> list[str]:
        """The folders of the manifests."""
        return [split_url(join_url(self.base, str(m)))[0] for m in get(self.config, "data.dataset_manifest") or []]

    @cached_property
    def recipe(self) -> Recipe:
        """The mixture as a recipe. Raises `ConfigError` if a setting is invalid."""
        weights = get(self.config, "data.dataset_weighting")
        if isinstance(weights, list) and weights and all(weight == 0 for weight in weights):
            raise ConfigError(
                "all weights are 0", file=self.file, kind="bad-recipe", fix="Set the weight of a dataset above 0."
            )
        with self._named():
            return Recipe.parse(self._for_recipe, base=self.base)

    @property
    def _for_recipe(self) -> dict[str, Any]:
        """Return the settings that a recipe follows, by dotted name."""
        return {name: value for name, value in named(self.config) if name in RECIPE}

    @cached_property
    def plan(self) -> Plan:
        """The plan: the sample at each position. Raises the errors of `feedmill.Recipe.plan`."""
        with self._named():
            return self.recipe.plan()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Rewrite errors of the recipe to name the run's file and settings."""
        try:
            yield
        except FeedmillError as error:
            if error.file in (None, "recipe"):
                error.file = self.file
            if error.kind == "too-many-repeats" and error.fix:
                fix = error.fix.replace("'samples: ", "'total_train_samples: ")
                error.fix = re.sub("raise max_repeats to [0-9]+", "set data.allow_multiple_epochs to true", fix)
            raise

    def validation(self) -> Plan:
        """Return the plan of the validation data: each sample once, in stored order."""
        with self._named():
            return Recipe.parse(self._for_recipe, base=self.base, mode="validation").plan()

    def windows(self, checkpoints: int | None = None) -> list[CheckpointWindow]:
        """Return the windows between checkpoints, as equal in size as whole global batches allow.

        Args:
            checkpoints: number of windows; default: ``num_checkpoints``.

        Raises:
            ConfigError: the run has no end, or is too short for this number of windows.
        """
        count = checkpoints or int(get(self.config, "num_checkpoints"))
        batch = int(get(self.config, "hparams.global_batch_size"))
        length = self.plan.length
        if length is None:
            raise ConfigError(
                "the run has no end", file=self.file, kind="endless", fix="Set total_train_samples or num_epochs."
            )
        steps = length // batch
        if steps < count:
            raise ConfigError(
                f"{length:,} samples are {steps} steps of {batch}, too few for {count} windows",
                file=self.file,
                kind="too-few-samples",
                fix="Reduce num_checkpoints or hparams.global_batch_size.",
            )
        ends = [steps * number // count * batch for number in range(count + 1)]
        return [CheckpointWindow(i, ends[i], ends[i + 1]) for i in range(count)]

    def shares(self, window: CheckpointWindow) -> list[int]:
        """Return the number of samples of each dataset in a window."""
        counts = np.zeros(len(self.plan.sources), np.int64)
        for start in range(window.start, window.stop, 1 << 20):
            found = self.plan.locate(np.arange(start, min(start + (1 << 20), window.stop)))
            counts += np.bincount(found.source, minlength=len(counts))
        return [int(count) for count in counts]

    def modalities(self, *, tokenize: Tokenize | None = None) -> dict[str, Modality]:
        """Return name -> modality for the datasets. Raises `ConfigError` if a setting of a modality is invalid."""
        data = dict(self.config.get("data", {}))
        data.setdefault("seq_len", get(self.config, "data.seq_len"))
        for name in ("dataset_statistics",):
            if data.get(name):
                data[name] = [join_url(self.base, str(path)) for path in data[name]]
        named = data.get("dataset_modality") or []
        folders = {name: [at for at, own in zip(self.folders, named, strict=False) if own == name] for name in named}
        return {
            name: modality(name, data, own, tokenize=tokenize or self._tokenizer(name)) for name, own in folders.items()
        }

    def _tokenizer(self, name: str) -> Tokenize | None:
        path = get(self.config, "data.tokenizer")
        if name != "text_untokenized" or path is None:
            return None
        return _Texts(join_url(self.base, str(path)))

    def loader(self, rank: int = 0, world_size: int = 1, *, tokenize: Tokenize | None = None, **more: Any) -> Loader:
        """Return a loader of this rank's share of every global batch.

        Args:
            rank: number of this rank, from 0.
            world_size: number of ranks.
            tokenize: tokenizing function for untokenized text, instead of ``data.tokenizer``.
            more: further arguments of `feedmill.Loader`; they override those of the run.

        Raises:
            ConfigError: the global batch size is not a multiple of `world_size`.
        """
        batch = int(get(self.config, "hparams.global_batch_size"))
        modalities = self.modalities(tokenize=tokenize)
        for note in self._ignored(modalities) if rank == 0 else ():
            logger.warning("%s", note)
        if batch % world_size:
            raise ConfigError(
                f"the global batch size {batch} is not a multiple of {world_size} ranks",
                file=self.file,
                kind="bad-batch",
                fix="Set hparams.global_batch_size to a multiple of the number of ranks.",
            )
        workers = get(self.config, "data.num_workers")
        settings: dict[str, Any] = {
            "workers": "auto" if workers is None else int(workers),
            "prefetch": max(1, int(get(self.config, "data.prefetch_factor"))),
            "task_encoder": VlaEncoder(modalities),
            "remainder": "drop",
            "deal": "contiguous",  # the positions of each rank are those of VLA Foundry
        }
        return Loader(self.plan, batch // world_size, rank=rank, world_size=world_size, **{**settings, **more})

    def batches(self, loader: Loader, window: CheckpointWindow) -> Iterator[Any]:
        """Yield the remaining batches of a window, from the loader's position to the end of the window.

        Raises:
            ConfigError: the loader's position is not inside the window.
        """
        if not window.start <= loader.position <= window.stop:
            raise ConfigError(
                f"position {loader.position:,} of the loader is outside the window {window.start:,} to {window.stop:,}",
                kind="bad-recipe",
                fix="Load a state that was saved in this window, or use the window of the loader's position.",
            )
        if loader.position == window.stop:
            return
        for batch in loader:
            yield batch
            if loader.position >= window.stop:
                return


class _Texts:
    """Tokenizing function of a local tokenizer that can be pickled: another process loads the tokenizer again."""

    def __init__(self, path: str) -> None:
        from feedmill.tokens.tokenizer import load_tokenizer

        self.path = path
        self._tokenizer = load_tokenizer(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Texts, (self.path,)

    def __call__(self, texts: Sequence[str]) -> list[npt.NDArray[np.integer[Any]]]:
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        found = self._tokenizer.encode(clean)
        return list(np.split(found.ids, np.cumsum(found.lengths)[:-1]))


def _whole(value: Any, least: int) -> bool:
    try:
        return not isinstance(value, bool) and int(value) == float(value) and int(value) >= least
    except (TypeError, ValueError, OverflowError):
        return False


_MODALITY = "__modality__"


class VlaEncoder(TaskEncoder):
    """Task encoder that decodes and batches each sample by the modality of its dataset.

    Text with too few tokens is skipped and counted. Any other problem is an error of that sample.

    With one modality, batches are those of the modality. With several, every batch is a dictionary with all of them, in
    the order of `modalities`: the batch of the samples of each modality, or None if this batch has no sample of it.

    Args:
        modalities: name -> modality, see `feedmill.samples.vla.modalities.modality`.
    """

    def __init__(self, modalities: Mapping[str, Modality]) -> None:
        self.modalities = dict(modalities)

    def cook_crude_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        """Return the decoded fields of a sample."""
        name = (sample.subflavors or {}).get("modality")
        if name is None and len(self.modalities) == 1:
            name = next(iter(self.modalities))
        found = self.modalities.get(str(name))
        if found is None:
            raise ConfigError(
                f"unknown modality {name!r} of a dataset: the run has {', '.join(self.modalities)}",
                kind="bad-recipe",
                fix="Add it to dataset_modality.",
            )
        prepare = getattr(found, "prepare", found.cook)  # some modalities finish decoding in `batch`
        try:
            return {**prepare(sample, drawn(rng)), _MODALITY: name}
        except DataError as error:
            if error.kind == "too-short":
                raise SkipSample(str(error)) from None
            raise

    def batch(self, samples: Sequence[dict[str, Any]]) -> Any:
        """Return the columns of a batch; with several modalities, modality -> its columns, or None without samples."""
        groups: dict[str, list[dict[str, Any]]] = {name: [] for name in self.modalities}
        for sample in samples:
            groups[sample[_MODALITY]].append({k: v for k, v in sample.items() if k != _MODALITY})
        done = {name: self.modalities[name].batch(group) if group else None for name, group in groups.items()}
        return done if len(done) > 1 else next(iter(done.values()))
