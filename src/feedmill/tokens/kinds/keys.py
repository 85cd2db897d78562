"""What each key of ``tokenizer_config.json`` does to ids, for a folder with a ``tokenizer.json``.

The table is closed: a key is applied (`APPLIED`), harmless for a reason (`HARMLESS`), or decided by code that Feedmill
does not have (`UNDECIDED`). Any other key is named in the report; the classes of transformers 4.57 and 5.24 that are
followed here read no other one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feedmill.errors import ConfigError
from feedmill.tokens.kinds.slow import ROLES
from feedmill.tokens.template import CONFIG

APPLIED = {
    *ROLES,
    *("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"),
    *("add_bos_token", "add_eos_token", "add_prefix_space", "legacy", "tokenizer_class", "split_special_tokens"),
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars"),
    *("extra_ids", "language", "task", "predict_timestamps"),  # of T5 and Whisper
}
_LONG, _BACK, _CHAT = "padding and truncation, which tokenizing has not", "decoding only", "conversations only"
_FILE, _SLOW, _TYPES = "where the files came from", "the classes in Python only", "other inputs of a model than ids"
HARMLESS = {
    **dict.fromkeys(("model_max_length", "max_len", "max_length", "stride", "truncation", "truncation_side"), _LONG),
    **dict.fromkeys(("truncation_strategy", "padding", "padding_side", "pad_token_id", "pad_to_multiple_of"), _LONG),
    **dict.fromkeys(("clean_up_tokenization_spaces", "errors", "spaces_between_special_tokens"), _BACK),
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": _BACK,
    **dict.fromkeys(("chat_template", "response_template", "response_schema", "chat_control_tokens"), _CHAT),
    **dict.fromkeys(("use_default_system_prompt", "default_chat_template", "grounded_generation_template"), _CHAT),
    "tool_use_template": _CHAT,
    **dict.fromkeys(("name_or_path", "tokenizer_file", "special_tokens_map_file", "processor_class"), _FILE),
    **dict.fromkeys(("vocab_file", "merges_file", "backend", "files_loaded", "is_local", "local_files_only"), _FILE),
    **dict.fromkeys(
        ("_commit_hash", "transformers_version", "init_inputs", "use_fast", "device_map", "verbose"), _FILE
    ),
    **dict.fromkeys(("sp_model_kwargs", "do_basic_tokenize", "never_split", "remove_space", "keep_accents"), _SLOW),
    **dict.fromkeys(("model_input_names", "pad_token_type_id", "return_token_type_ids"), _TYPES),
    "trim_offsets": "places of tokens in the text only",
}
UNDECIDED = {
    "auto_map": "names a class in code of the model",
    "fix_mistral_regex": "replaces the pre-tokenizer of some releases' files",
    "from_slow": "builds the tokenizer from its other files",
}


def check_keys(settings: Mapping[str, Any], folder: Path) -> list[str]:
    """Return a note about the keys that are not known; empty if all are.

    Raises:
        ConfigError: a key is set that code decides which Feedmill does not have.
    """
    for key, why in UNDECIDED.items():
        value = settings.get(key)
        if value and (key != "auto_map" or not isinstance(value, dict) or "AutoTokenizer" in value):
            raise ConfigError(
                f"{key} {why}, which can change the ids and is not applied",
                file=str(folder / CONFIG),
                kind="undecided-template",
                fix="Pass --template-source file to use tokenizer.json alone (in Python template_source='file'), or"
                " remove the key. AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW) writes a tokenizer.json.",
            )
    unknown = sorted(key for key in settings if key not in APPLIED and key not in HARMLESS and not _is_known(key))
    return [f"not known, no effect: {', '.join(unknown)}"] if unknown else []


def _is_known(key: str) -> bool:
    return key in UNDECIDED or key.endswith("_token")  # a token of the model, such as image_token
