"""Translate Megatron-LM's arguments about data to a recipe in its order.

The arguments are a mapping with the names of the command line (``data_path``, ``data-path`` and ``--data-path`` are the
same); `megatron_settings.ARGUMENTS` has those that concern data, others are named in a note. Paths of token files are
prefixes, as in Megatron-LM.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from feedmill.errors import ConfigError
from feedmill.formats.yamls import Marks
from feedmill.planning.dialects import TRAIN, VALIDATION, Place, Translation
from feedmill.planning.dialects.megatron_settings import ARGUMENTS, batch_settings
from feedmill.storage import join_url, open_store, split_url

PARTS = ("train", "valid", "test")
DATA = (
    "data_path",
    "data_args_path",
    "train_data_path",
    "valid_data_path",
    "test_data_path",
    "per_split_data_args_path",
)
NUMBERS = {
    "seq_length": None,
    "encoder_seq_length": None,
    "seed": 1234,
    "train_samples": None,
    "train_iters": None,
    "global_batch_size": None,
    "eval_interval": 1000,
    "eval_iters": 100,
    "eval_global_batch_size": None,
    "start_eval_at_iter": 0,
}
"""Arguments that are integers, with Megatron-LM's defaults."""
_ORDER = {
    "mid_level_dataset_surplus": "surplus",
    "add_extra_token_to_sequence": "extra_token",
    "drop_last_partial_validation_sequence": "drop_last_partial",
}
"""Arguments that are keys of a recipe's `order`."""
_FLAGS = (
    "add_extra_token_to_sequence", "drop_last_partial_validation_sequence", "dataloader_inter_document_masking",
    "skip_train", "full_validation",
)  # fmt: skip
DEFAULT_SPLIT = "969,30,1"


def attribute(name: str) -> str:
    """Return the name of an argument without dashes: ``--data-path`` is ``data_path``."""
    return name.lstrip("-").replace("-", "_")


def translate(
    data: Any, marks: Marks | None, file: str, *, mode: str, split: str | None = None, base: str = ""
) -> Translation:
    """Return the recipe of one part of a run.

    Args:
        data: the arguments.
        marks, file: where they come from, for errors.
        mode: ``validation`` is the split ``valid``.
        split: train, valid or test.
        base: folder or URL of the files that the arguments name.

    Raises:
        ConfigError: an argument is missing, invalid or unsupported.
    """
    part = split or ("valid" if mode == VALIDATION else TRAIN)
    return _Arguments(data, marks, file, base).translate({"val": "valid"}.get(part, part))


class _Arguments:
    def __init__(self, data: Mapping[str, Any], marks: Marks | None, file: str, base: str) -> None:
        self.marks, self.file, self.base = marks, file, base
        self.keys = {attribute(str(key)): str(key) for key in data}
        self.values: dict[str, Any] = {attribute(str(key)): value for key, value in data.items()}
        self.result = Translation(file)

    def translate(self, part: str) -> Translation:
        if part not in PARTS:
            raise self.error(None, f"there is no split {part!r}", f"Use {', '.join(PARTS)}.")
        self.values, self.result.notes = ARGUMENTS.take(self.values, self.at)
        self.check_values()
        self.note_batches()
        order = self.order(part)
        name, words = self.words(part)
        prefixes, weights = blend_of(words)
        together = name in ("data_path", "data_args_path")
        if together:
            split = self.values.get("split")
            order["split"] = DEFAULT_SPLIT if split is None else str(split)
        if self.values.get("data_cache_path"):
            order["cache"] = str(self.values["data_cache_path"])
        data: dict[str, Any] = {"seed": self.number("seed"), "order": order}
        samples = self.samples(part)
        if samples is not None:
            data["samples"] = samples
        members: list[dict[str, Any]] = [{"path": f"{prefix.removesuffix('.bin')}.bin"} for prefix in prefixes]
        if len(members) == 1 and (weights is None or not together):
            data["source"] = members[0]
        else:
            for member, weight in zip(members, weights or (), strict=False):
                member["weight"] = weight
            data["blend"] = members
        self.result.data = data
        self.result.origins = {
            ("blend",): self.at(name),
            ("source",): self.at(name),
            ("samples",): self.at("train_iters"),
        }
        self.result.origins |= {("seed",): self.at("seed"), ("order",): self.at("seq_length")}
        return self.result

    def order(self, part: str) -> dict[str, Any]:
        """Return the order of a recipe, as far as it does not depend on the form of the data."""
        lengths = [name for name in ("seq_length", "encoder_seq_length") if self.number(name) is not None]
        if len(lengths) != 1:
            raise self.error(
                lengths[1] if lengths else None,
                "'seq_length' and 'encoder_seq_length' are both given" if lengths else "'seq_length' is missing",
                "Keep one of them." if lengths else "Give the run's --seq-length.",
            )
        order: dict[str, Any] = {"kind": "megatron", "seq_len": self.number(lengths[0]), "part": part}
        for name, key in _ORDER.items():
            value = self.values.get(name)
            if value is not None:
                order[key] = self.decimal(name, value) if name == "mid_level_dataset_surplus" else value
        if self.values.get("dataloader_inter_document_masking"):
            order |= {"positions": True, "boundaries": True}
        return order

    def check_values(self) -> None:
        """Raise `ConfigError` for flags, such as text that says ``false``, and for data and a split of another type."""
        for name, value in self.values.items():
            if name in (*_FLAGS, *batch_settings([name])) and not isinstance(value, bool | None):
                raise self.error(name, f"'{name}' must be true or false, found {value!r:.60}", "Change it.")
            if name in DATA and not isinstance(value, str | list | tuple | None):
                raise self.error(name, f"'{name}' must be a path or a list, found {value!r:.60}", "Change it.")
        split = self.values.get("split")
        if isinstance(split, bool) or not isinstance(split, str | int | float | None):
            raise self.error("split", f"'split' must be text, found {split!r:.60}", "Write it as 969,30,1.")

    def note_batches(self) -> None:
        """Note the arguments that are about the fields of batches."""
        names = batch_settings(name for name, value in self.values.items() if value)
        if names:
            self.result.notes.append(
                f"{', '.join(names)}: not in the recipe, as it makes no batches: pass **gpt_settings(RUN) to gpt_fields"
                " (feedmill.compat.megatron.fields)"
            )

    def words(self, part: str) -> tuple[str, list[str]]:
        """Return the argument that names the data of a part, and its words: prefixes, or weights and prefixes."""
        own = f"{part}_data_path"
        apart = [f"{each}_data_path" for each in PARTS]
        given = [name for name in DATA if self.values.get(name) is not None]
        if not given:
            raise self.error(None, "the arguments name no data", f"Give one of {', '.join(DATA)}.")
        kinds = {"per part" if name in apart else name for name in given}
        if len(kinds) > 1:
            listed = " and ".join(repr(name) for name in given)
            raise self.error(given[1], f"the data is given twice, by {listed}", "Keep one of them.")
        if "per part" in kinds and own not in given:
            raise self.error(given[0], f"'{own}' is missing", "Give the data of this part, or use another split.")
        name = own if "per part" in kinds else given[0]
        value = self.values[name]
        if name.endswith("args_path"):
            text = self.read(name, str(value))
            value = text
            if name.startswith("per_split"):
                value = self.of_part(name, text, part)
        words = shlex.split(value) if isinstance(value, str) else [str(word) for word in value or ()]
        if not words:
            raise self.error(name, f"there is no data for {part!r}", "Give at least one prefix.")
        return name, words

    def of_part(self, name: str, text: str, part: str) -> Any:
        """Return the data of a part in a file of blends per split."""
        try:
            content = json.loads(text)
        except ValueError as error:
            raise self.error(name, f"the blend file is not JSON ({error})", "Write it as for Megatron-LM.") from None
        if not isinstance(content, dict) or not isinstance(content.get(part), str | list):
            raise self.error(name, f"the file of blends has no data for {part!r}", "Add it, or use another split.")
        return content[part]

    def read(self, name: str, path: str) -> str:
        folder, file = split_url(join_url(self.base, path) if self.base else path)
        try:
            return open_store(folder).read(file).decode()
        except UnicodeDecodeError:
            raise self.error(name, f"{path} is not text", "Give the path of the blend file.") from None

    def samples(self, part: str) -> int | None:
        """Return the samples that Megatron-LM requests for a part; None for one epoch."""
        if part == "valid" and self.values.get("full_validation"):
            return None
        batch, iterations = self.number("global_batch_size"), self.number("train_iters")
        samples = self.number("train_samples")
        if iterations is None and samples is not None and batch:
            iterations = samples // batch
        if part == "train" and samples is None and iterations is not None and batch is not None:
            samples = iterations * batch
        if part != "train":
            points = 1
            if part == "valid" and iterations is not None and not self.values.get("skip_train"):
                interval = self.number("eval_interval") or 1
                points = max(0, iterations // interval + 1 - (self.number("start_eval_at_iter") or 0) // interval)
            known = batch is not None and (part == "test" or iterations is not None or self.values.get("skip_train"))
            size = self.number("eval_global_batch_size") or batch or 0
            samples = points * (self.number("eval_iters") or 0) * size if known else None
        if not samples:
            raise self.error(
                "train_iters",
                f"the number of samples of {part!r} is {'zero' if samples == 0 else 'unknown'}",
                "Give 'train_samples', or 'train_iters' and 'global_batch_size' (and 'eval_iters'), as in the run.",
            )
        return samples

    def number(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is None:
            return NUMBERS[name]
        try:
            if isinstance(value, bool | float):
                raise ValueError
            return int(value)
        except (TypeError, ValueError):
            raise self.error(name, f"'{name}' must be an integer, found {value!r:.60}", "Give a number.") from None

    def decimal(self, name: str, value: Any) -> float:
        try:
            if isinstance(value, bool):
                raise ValueError
            return float(value)
        except (TypeError, ValueError):
            raise self.error(name, f"'{name}' must be a number, found {value!r:.60}", "Give a number.") from None

    def at(self, name: str | None) -> str:
        place: Place = () if name is None or name not in self.keys else (self.keys[name],)
        return self.file if self.marks is None else self.marks.where(place)

    def error(self, name: str | None, what: str, fix: str) -> ConfigError:
        return ConfigError(what, file=self.at(name), kind="bad-recipe", fix=fix)


def blend_of(words: list[str]) -> tuple[list[str], list[float] | None]:
    """Return prefixes and weights of a list of words, by Megatron-LM's rule: weights if all odd words are numbers.

    >>> blend_of(["30", "a", "70", "b"]), blend_of(["a", "b"]), blend_of(["a"])
    ((['a', 'b'], [30.0, 70.0]), (['a', 'b'], None), (['a'], None))

    Raises:
        ConfigError: only some of them are numbers.
    """
    if len(words) % 2:
        return words, None
    weights = []
    for word in words[::2]:
        try:
            weights.append(float(word))
        except ValueError:
            continue
    if not weights:
        return words, None
    if len(weights) < len(words) // 2:
        raise ConfigError(
            f"only {len(weights)} of {len(words) // 2} weights of the blend are numbers",
            kind="bad-recipe",
            fix="Write a weight before each prefix, or before none.",
        )
    return words[1::2], weights
