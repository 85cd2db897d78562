"""Kinds of tokenizer files by their content: those that are read, and how to convert the others."""

from __future__ import annotations

import re
from pathlib import Path

from feedmill.errors import ConfigError

_RANK = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")
_CONVERT = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW) of transformers writes a tokenizer.json."
_SLOW = (("vocab.json", "merges.txt"), ("vocab.txt",), ("spiece.model",), ("sentencepiece.bpe.model",))


def is_sentencepiece(path: Path, data: bytes) -> bool:
    """Whether a file is a SentencePiece model, by its name (``.model``, ``.model.v3``) and its first bytes."""
    named = path.suffix == ".model" or ".model." in path.name
    return named and not _RANK.match(data)


def refuse_others(path: Path, data: bytes) -> None:
    """Raise ConfigError for the tokenizer files of other programs, with what they are and how to convert them."""
    start = data[: 1 << 16].lstrip()
    if _RANK.match(start):
        raise _other(
            path,
            "a tiktoken file (tokens in base64 with their ranks), which does not say how texts are split",
            "Use the tokenizer.json of the model's repository, or convert it: TikTokenConverter of transformers"
            " (convert_slow_tokenizer) takes the file and its pattern.",
        )
    if b'"token_bytes"' in start and b'"rank"' in start:
        raise _other(
            path,
            "Mistral's tekken.json",
            "Use the tokenizer.json of the model's repository, or convert it with transformers"
            " (integrations.mistral.convert_tekken_tokenizer).",
        )


def refuse_folder(folder: Path) -> None:
    """Raise ConfigError for a folder with a tokenizer of another kind."""
    for names in _SLOW:
        if all((folder / name).is_file() for name in names):
            raise _other(folder, f"the folder of a tokenizer in files of its own ({', '.join(names)})", _CONVERT)
    for path in sorted(folder.iterdir()):
        if path.suffix == ".tiktoken" or path.name == "tekken.json":
            with path.open("rb") as file:
                refuse_others(path, file.read(1 << 16))


def _other(path: Path, what: str, fix: str) -> ConfigError:
    return ConfigError(
        f"this is {what}: a tokenizer.json or a SentencePiece .model was expected",
        file=str(path),
        kind="other-tokenizer-kind",
        fix=fix,
    )
