"""Find the tokenizer that a name stands for: a file, a folder, or a model in the Hugging Face cache on this machine.

Nothing is downloaded. A name such as ``org/name`` is looked for in the cache that ``huggingface_hub`` fills
(``$HF_HUB_CACHE``, else ``$HF_HOME/hub``, else ``~/.cache/huggingface/hub``), at the revision ``main``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from feedmill.errors import ConfigError, NotFound
from feedmill.tokens.kinds.slow import CONVERT, FILES, is_slow
from feedmill.tokens.template import CONFIG, read_settings

_KINDS = ("tokenizer.json", "tekken.json", "tokenizer.model", *FILES)
_UNSUPPORTED = ("spiece.model", "sentencepiece.bpe.model")
_T5 = ("t5", "mt5", "umt5", "longt5", "switch_transformers", "musicgen", "musicgen_melody", "pix2struct")
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_READS = (
    "tokenizer.json, a SentencePiece .model, a .tiktoken file, tekken.json, vocab.json with merges.txt, or vocab.txt"
)


def find_tokenizer(given: str) -> Path:
    """Return the main file of a tokenizer.

    Raises:
        NotFound: there is none; the message names where it was looked for.
        ConfigError: a folder has only a tokenizer of an unsupported kind, or several.
    """
    path = Path(given)
    if path.is_file():
        return path
    if path.is_dir():
        return _in_folder(path)
    if not is_hub_name(given):
        raise NotFound(
            "the tokenizer does not exist on this machine",
            file=given,
            kind="no-tokenizer",
            fix=f"Give one of {_READS}, its folder, or the name of a model in the Hugging Face cache.",
        )
    cache = hub_cache()
    model = cache / f"models--{given.replace('/', '--')}"
    try:
        revision = (model / "refs/main").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise NotFound(
            "the tokenizer does not exist on this machine: it was looked for as a file or folder, and in the Hugging"
            f" Face cache as {model}",
            file=given,
            kind="no-tokenizer",
            fix="Names of a model hub are not looked up, and nothing is downloaded: download the model first, or set"
            " HF_HOME or HF_HUB_CACHE to the cache that has it.",
        ) from None
    snapshot = model / "snapshots" / revision
    if re.fullmatch(r"[0-9a-f]{7,64}", revision) is None or not snapshot.is_dir():
        raise NotFound(
            "the Hugging Face cache has no files of this revision", file=str(snapshot), fix="Download the model again."
        )
    return _in_folder(snapshot)


def is_hub_name(given: str) -> bool:
    """Return whether a name can be that of a model in the Hugging Face cache."""
    return _NAME.fullmatch(given) is not None


def hub_cache() -> Path:
    """Return the folder in which ``huggingface_hub`` stores models."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expandvars(os.path.expanduser(given or os.path.join(home, "hub"))))


def _in_folder(folder: Path) -> Path:
    for name in _KINDS:
        path = folder / name
        if path.is_file() and (name not in FILES or is_slow(path)):
            return path
    patterns = ("*.model.v*", "*.tiktoken", "tekken*.json", "*.model")
    named = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.name not in _UNSUPPORTED})
    if len(named) == 1:
        return named[0]
    if named:
        raise ConfigError(
            f"the folder has several tokenizers: {', '.join(path.name for path in named)}",
            file=str(folder),
            kind="ambiguous",
            fix="Pass one of the files.",
        )
    other = next((name for name in _UNSUPPORTED if (folder / name).is_file()), None)
    if other is not None:
        raise _changed_ids(folder, other)
    raise NotFound(
        f"the folder has no tokenizer: expected {_READS}",
        file=str(folder),
        kind="no-tokenizer",
        fix="Pass the tokenizer's own folder or file.",
    )


def refuse_classes(path: Path) -> None:
    """Raise `ConfigError` for a SentencePiece model of the T5 class, whose ids are not those of the model alone."""
    config = read_settings(path.parent / "config.json")
    name = read_settings(path.parent / CONFIG).get("tokenizer_class") or config.get("tokenizer_class")
    kind = str(name).removesuffix("Fast").removesuffix("Tokenizer").lower() if name else config.get("model_type")
    if path.name in _UNSUPPORTED and kind in _T5:
        raise _changed_ids(path.parent, path.name)


def _changed_ids(folder: Path, name: str) -> ConfigError:
    return ConfigError(
        f"expected {_READS}; found {name}, whose ids the model's class in transformers changes",
        file=str(folder),
        kind="unsupported-tokenizer",
        fix=CONVERT,
    )
