"""Translate Megatron-LM's arguments about data to a recipe in its order.

The arguments are a mapping with the names of the command line (``data_path``, ``data-path`` and ``--data-path`` are the
same); `ARGUMENTS` has those that concern data, others are named in a note. Paths of token files are
prefixes, as in Megatron-LM.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from feedmill.errors import ConfigError
from feedmill.formats.settings import Origin, Table, alike, mapped, no_effect, refused
from feedmill.formats.yamls import Marks
from feedmill.planning.dialects import TRAIN, VALIDATION, Place, Translation
from feedmill.storage import join_url, open_store, split_url

FIELDS = "gpt_fields"
_ARGUMENTS = "megatron/training/arguments.py"
_TRAINING = "megatron/training/config/training_config.py"
_DATA = mapped("`source`, or `blend` with or without weights")
_CYCLIC = "its sampler draws other samples in each pass, by the number of ranks and the micro batch"
_VALIDATION = mapped("`samples` of the part `valid`")
_OTHER_MODELS = no_effect("for other datasets than that of GPT")
_BATCH = mapped(f"`{FIELDS}`, by `gpt_settings`")
_SAME = no_effect("the samples and their order are the same")
_CACHE = no_effect("how indices and files are opened; Feedmill reads both without it")


ARGUMENTS = Table(
    face="arguments of a run",
    origin=(
        Origin("options", _ARGUMENTS, "_add_data_args"),
        Origin("arguments", _TRAINING, "ValidationConfig"),
        Origin("options", _ARGUMENTS, "_add_sft_args"),
        Origin("arguments", _TRAINING, "TrainingConfig", whole=False),
        Origin("arguments", "megatron/training/config/common_config.py", "RNGConfig", whole=False),
        Origin("arguments", "megatron/core/model_parallel_config.py", "ModelParallelConfig", whole=False),
        Origin("options", _ARGUMENTS, whole=False),
        Origin("fields", "megatron/core/datasets/gpt_dataset.py", "GPTDatasetConfig", whole=False),
    ),
    settings={
        **alike(
            _DATA, "data_path data_args_path train_data_path valid_data_path test_data_path per_split_data_args_path"
        ),
        "split": mapped("`order: split`; 969,30,1 without it"),
        **alike(mapped("`order: seq_len`"), "seq_length encoder_seq_length"),
        "seed": mapped("`seed`; 1234 without it"),
        "train_samples": mapped("`samples`"),
        **alike(mapped("`samples`: iterations times the batch"), "train_iters global_batch_size"),
        **alike(
            _VALIDATION, "eval_interval eval_iters eval_global_batch_size start_eval_at_iter skip_train full_validation"
        ),
        "data_cache_path": mapped("`order: cache`"),
        "mid_level_dataset_surplus": mapped("`order: surplus`"),
        "add_extra_token_to_sequence": mapped("`order: extra_token`; only in `GPTDatasetConfig`"),
        "drop_last_partial_validation_sequence": mapped("`order: drop_last_partial`; only in `GPTDatasetConfig`"),
        "dataloader_inter_document_masking": mapped(
            "`order: positions` and `boundaries`: samples have positions that begin at 0 in each document, and the"
            " bounds of documents; make `cu_seqlens` of these"
        ),
        **alike(_BATCH, "reset_position_ids reset_attention_mask eod_mask_loss no_create_attention_mask_in_dataloader"),
        "allow_ambiguous_pad_tokens": no_effect(
            f"on the samples. `{FIELDS}` masks the id that you pass as `pad`: with this argument, pass the tokenizer's"
            " padding id; without it, only if no other special token has this id"
        ),
        "dataloader_type": refused(f"`single` is reproduced. `cyclic`: {_CYCLIC}. `external`: your own code", "single"),
        "no_data_sharding": no_effect("only with `--dataloader-type cyclic`"),
        "hybrid_context_parallel": refused("samples are dealt to ranks by their length"),
        "fim_data": refused("samples are rearranged to fill in the middle, at random"),
        **alike(
            no_effect("only with `--fim-data`"),
            "fim_rate fim_spm_rate fim_split_sample fim_fragment_rate fim_no_prefix fim_prefix_token fim_middle_token"
            " fim_suffix_token fim_pad_token fim_eod_token",
        ),
        "sft": refused("its dataset reads conversations and packs them: use `feedmill tokenize --chat` and `pack`"),
        "sft_tokenizer_prompt_format": no_effect("only with `--sft`"),
        "mock_data": refused("there is no data to read"),
        "phase_transition_iterations": refused("the order of several phases is not reproduced", "", []),
        "rampup_batch_size": refused("the global batch changes during the run: give `train_samples` instead", []),
        "step_batch_size_schedule": refused(
            "the global batch changes during the run: give `train_samples` instead", ""
        ),
        "multiple_validation_sets": refused("several validation sets are several datasets: write a recipe for each"),
        "validation_set_names": no_effect("only with `--multiple-validation-sets`"),
        **alike(
            _SAME, "micro_batch_size eval_micro_batch_size decrease_batch_size_if_needed iterations_to_skip test_mode"
        ),
        **alike(_SAME, "num_workers num_dataset_builder_threads sample_rate"),
        **alike(
            _CACHE,
            "per_dataset_sequences_path dataloader_fast_cache_load dataloader_defer_npy_index_mmap no_mmap_bin_files"
            " object_storage_cache_path",
        ),
        **alike(_OTHER_MODELS, "decoder_seq_length mask_prob short_seq_prob"),
    },
    open=True,
    likeness=0.9,
)

CONFIG = Table(
    face="`GPTDatasetConfig`, in the keys of a recipe",
    origin=(
        Origin("fields", "megatron/core/datasets/blended_megatron_dataset_config.py", "BlendedMegatronDatasetConfig"),
        Origin("fields", "megatron/core/datasets/gpt_dataset.py", "GPTDatasetConfig"),
    ),
    settings={
        "random_seed": mapped("`seed`"),
        "sequence_length": mapped("`order: seq_len`"),
        **alike(_DATA, "blend blend_per_split"),
        "split": mapped("`order: split`"),
        "split_matrix": no_effect("made of `split`"),
        "full_validation": mapped("no `samples`: one epoch of each dataset"),
        "path_to_cache": mapped("`order: cache`"),
        "mid_level_dataset_surplus": mapped("`order: surplus`"),
        "add_extra_token_to_sequence": mapped("`order: extra_token`"),
        "drop_last_partial_validation_sequence": mapped("`order: drop_last_partial`"),
        "inter_document_masking": mapped("`order: positions` and `boundaries`"),
        **alike(mapped(f"`{FIELDS}`"), "reset_position_ids reset_attention_mask eod_mask_loss create_attention_mask"),
        "allow_ambiguous_pad_tokens": no_effect(f"on the samples: `{FIELDS}` masks the id that you pass as `pad`"),
        "multiple_validation_sets": refused("several validation sets are several datasets: write a recipe for each"),
        "hybrid_context_parallel": refused("samples are dealt to ranks by their length"),
        **alike(
            refused("there is no data to read"), "mock sft_mock_dataset_config_json varlen_mock_dataset_config_json"
        ),
        "varlen_sbhd_validation": refused("samples of varying length are made by its own dataset"),
        "tokenizer": no_effect("token files are tokenized already"),
        **alike(
            _CACHE,
            "num_dataset_builder_threads mmap_bin_files fast_cache_load defer_npy_index_mmap object_storage_cache_path"
            " sequences_per_dataset token_dtype_code",
        ),
        **alike(_SAME, "data_parallel_size sequence_parallel_size context_parallel_size"),
    },
)

TABLES = (ARGUMENTS, CONFIG)


def batch_settings(names: Iterable[str]) -> list[str]:
    """Return the arguments that are those of `feedmill.compat.megatron.fields.gpt_fields`."""
    return [name for name in names if ARGUMENTS.settings.get(name) == _BATCH]


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
