"""Recognize a model by its files, and parse its settings."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, MissingExtra, NotFound
from feedmill.storage.hashed import hash_file
from feedmill.storage.limits import refuse_large

PREFIX = "model:"
Kind = Literal["onnx", "static", "transformers", "fasttext"]
Long = Literal["first", "windows"]
Device = Literal["auto", "cpu", "cuda"]
_WEIGHTS = "model.safetensors"
_TOKENIZER = "tokenizer.json"
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_SENTENCES = "config_sentence_transformers.json"
_STATIC = "0_StaticEmbedding"
_ONNX = ("model.onnx", "onnx/model.onnx")
_VISION = ("onnx/vision_model.onnx", "vision_model.onnx")
_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user sets of a model, behind its path.

    Attributes:
        tokens: Tokens of a window, with special tokens. None: What the model takes, at most 512.
        long: Of a longer text, the first window is read, or all windows, whose results are averaged by tokens.
        device: Where networks run. ``auto`` is the first GPU if there is one.
        dtype: Type of the weights of a model of transformers. None: That of the file on a GPU, float32 on a CPU.
    """

    tokens: int | None = None
    long: Long = "first"
    device: Device = "auto"
    dtype: str | None = None

    def deciding(self) -> dict[str, Any]:
        """Return the settings on which results depend beyond the tolerance, for fingerprints."""
        return {"tokens": self.tokens, "long": self.long, "dtype": self.dtype}


class Named(NamedTuple):
    """A model as users write it: its path and settings."""

    path: str
    settings: Settings


def parse(text: str) -> Named:
    """Parse ``PATH`` or ``PATH,name=value,...``, with or without ``model:`` before it.

    >>> parse("model:models/edu,tokens=256")
    Named(path='models/edu', settings=Settings(tokens=256, long='first', device='auto', dtype=None))

    Raises:
        ConfigError: A setting is unknown or its value is invalid, or the path is a URL.
    """
    path = text.removeprefix(PREFIX)
    known, given = {one.name for one in fields(Settings)}, dict[str, str]()
    while "," in path and "=" in path.rpartition(",")[2]:
        path, _, last = path.rpartition(",")
        name, _, value = last.partition("=")
        if name not in known:
            raise _bad(f"a model has no setting {name!r}", path, f"Use {', '.join(sorted(known))}.")
        given[name] = value
    if "://" in path:
        raise _bad("models must be local: they are not downloaded", path, "Copy it to a local disk, and pass its path.")
    if not path:
        raise _bad("no path of a model", text, "Write model:PATH.")
    return Named(path, _settings(given, path))


def name_of(path: str) -> str:
    """Return the name of a model: that of its file, or of its folder if the file is called ``model``.

    >>> name_of("models/edu/model.onnx"), name_of("models/all-MiniLM/"), name_of("quality.bin")
    ('edu', 'all_MiniLM', 'quality')
    """
    whole = os.path.abspath(path)
    stem = os.path.basename(whole)
    if os.path.splitext(stem)[1] in (".onnx", ".safetensors", ".bin", ".ftz"):
        stem = os.path.splitext(stem)[0]
        folder = os.path.dirname(whole)
        if stem.startswith(("model", "vision_model", "text_model")):
            stem = os.path.basename(os.path.dirname(folder) if folder.endswith("/onnx") else folder)
    name = re.sub(r"[^A-Za-z0-9_]", "_", stem)
    return name if name[:1].isalpha() else f"model_{name}"


def _settings(given: Mapping[str, str], path: str) -> Settings:
    if (tokens := given.get("tokens")) is not None and not (tokens.isdecimal() and int(tokens) > 0):
        raise _bad(f"tokens={tokens} is not a number of tokens", path, "Use 1 or more.")
    for name, allowed in (("long", get_args(Long)), ("device", get_args(Device)), ("dtype", _DTYPES)):
        if name in given and given[name] not in allowed:
            raise _bad(f"{name}={given[name]} is unknown", path, f"Use {', '.join(allowed)}.")
    return Settings(
        None if tokens is None else int(tokens),
        cast(Long, given.get("long", "first")),
        cast(Device, given.get("device", "auto")),
        given.get("dtype"),
    )


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on a local disk.

    Attributes:
        path: As the user wrote it.
        kind: How it is run.
        folder: Folder of its files.
        weights: File of its weights: ONNX, safetensors or fastText.
        sentences: Static embeddings are in the layout of sentence-transformers, not in that of model2vec.
        config: ``config.json``, or empty.
    """

    path: str
    kind: Kind
    folder: str
    weights: str
    sentences: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokenizer(self) -> str:
        """Path of the tokenizer."""
        return self._beside(_TOKENIZER)

    @property
    def processor(self) -> str:
        """Path of the settings by which images are prepared."""
        found = [self._beside(name) for name in _PROCESSORS]
        return next((path for path in found if os.path.isfile(path)), found[0])

    @property
    def reads_images(self) -> bool:
        """Whether the model reads images, not texts: it says how these are prepared."""
        text = os.path.basename(self.weights).startswith("text")
        return self.kind in ("onnx", "transformers") and not text and os.path.isfile(self.processor)

    def _beside(self, name: str) -> str:
        near = os.path.join(os.path.dirname(self.weights), name)
        return near if os.path.isfile(near) else os.path.join(self.folder, name)

    def files(self) -> dict[str, str]:
        """Return the files that decide results, by their paths in the folder."""
        if self.kind == "fasttext":
            return {os.path.basename(self.weights): self.weights}
        beside, found = os.path.dirname(self.weights), [self.weights]
        found.append(self.processor if self.reads_images else self.tokenizer)
        names = ["config.json", "tokenizer_config.json", "modules.json", "1_Pooling/config.json", _SENTENCES]
        found += [os.path.join(self.folder, name) for name in (*names, "head.safetensors")]
        if self.kind == "onnx":  # weights can lie in further files, of any name
            found += [os.path.join(beside, name) for name in os.listdir(beside) if not name.endswith(".onnx")]
        if self.kind == "transformers":  # so that the weights can be in several
            found += [os.path.join(beside, name) for name in os.listdir(beside) if name.endswith(".safetensors")]
        there = {os.path.relpath(path, self.folder): path for path in found if os.path.isfile(path)}
        return dict(sorted(there.items()))

    def state(self) -> tuple[tuple[str, int, int, int], ...]:
        """Return what changes if a file is replaced: modification time, size and inode of each."""
        stats = ((name, os.stat(path)) for name, path in self.files().items())
        return tuple((name, one.st_mtime_ns, one.st_size, one.st_ino) for name, one in stats)

    def hashes(self) -> dict[str, str]:
        """Return the 128-bit xxh3 of each file that decides results."""
        return {name: hash_file(path) for name, path in self.files().items()}

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file of the folder, or an empty dict if it is missing. Raises ConfigError."""
        path = os.path.join(self.folder, name)
        if not os.path.isfile(path):
            return {}
        try:
            refuse_large(os.path.getsize(path), path)
            with open(path, encoding="utf-8") as file:
                return json.load(file)
        except (ValueError, OSError) as error:
            raise bad_model(f"{name} is not JSON ({error})", path) from None

    def refuse_other_code(self) -> None:
        """Raise ConfigError if the configuration asks for code of the model itself."""
        if "auto_map" in self.config:
            raise bad_model(
                "the model needs code of its own (auto_map in config.json), which is never run",
                self.path,
                "Export it to ONNX, or use another model.",
            )


def find_model(path: str) -> ModelFiles:
    """Return what the path of a model is.

    A folder, or a file in it: ``model.onnx`` (or ``onnx/model.onnx``) with a ``tokenizer.json``; else static embeddings
    of model2vec or sentence-transformers; else ``model.safetensors`` with a ``config.json`` of transformers. A file
    ``.bin`` or ``.ftz`` alone is one of fastText. With a ``preprocessor_config.json`` a network reads images; of a
    folder with both towers of CLIP, that is ``vision_model.onnx``.

    Raises:
        NotFound: There is nothing.
        ConfigError: It is none of these, or has weights in a format that can run code.
    """
    if not os.path.exists(path):
        raise NotFound("model not found", file=path, fix="Pass the path of a local file or folder.")
    if os.path.isfile(path):
        folder, name = os.path.dirname(path) or ".", os.path.basename(path)
        if name.endswith((".bin", ".ftz")) and not name.startswith("pytorch_model"):
            return ModelFiles(path, "fasttext", folder, path)
        if name.endswith(".onnx"):
            own = any(os.path.isfile(os.path.join(folder, beside)) for beside in (_TOKENIZER, *_PROCESSORS))
            if os.path.basename(folder) == "onnx" and not own:
                folder = os.path.dirname(folder) or "."
            return _checked(ModelFiles(path, "onnx", folder, path))
        if name.endswith(".safetensors"):
            return _of_safetensors(path, folder, path)
        raise _unknown(path, [name])
    images = any(os.path.isfile(os.path.join(path, name)) for name in _PROCESSORS)
    for name in (*(_VISION if images else ()), *_ONNX):
        if os.path.isfile(found := os.path.join(path, name)):
            return _checked(ModelFiles(path, "onnx", path, found))
    there = sorted(os.listdir(path))
    exported = [name for name in there if name.endswith(".onnx")]
    if len(exported) == 1:
        return _checked(ModelFiles(path, "onnx", path, os.path.join(path, exported[0])))
    if len(exported) > 1:
        raise bad_model(f"the folder has several models: {', '.join(exported[:5])}", path, "Pass the path of one.")
    for name in (_WEIGHTS, f"{_STATIC}/{_WEIGHTS}", "model.safetensors.index.json"):
        if os.path.isfile(found := os.path.join(path, name)):
            return _of_safetensors(path, path, found)
    raise _unknown(path, there)


def _of_safetensors(path: str, folder: str, weights: str) -> ModelFiles:
    config = ModelFiles(path, "static", folder, weights).read_json("config.json")
    sentences = os.path.isfile(os.path.join(folder, _SENTENCES))
    own = config.get("model_type") == "model2vec" or "StaticModel" in (config.get("architectures") or ())
    if not own and not sentences and "architectures" not in config and weights.endswith(_WEIGHTS):
        own = "embeddings" in tensor_names(weights)  # model2vec's `save_pretrained` of a model made by hand
    if own:
        return _checked(ModelFiles(path, "static", folder, weights))
    if sentences and weights.endswith(_WEIGHTS) and "embedding.weight" in tensor_names(weights):
        return _checked(ModelFiles(path, "static", folder, weights, True))
    return _checked(ModelFiles(path, "transformers", folder, weights))


def _checked(model: ModelFiles) -> ModelFiles:
    config = model.read_json("config.json")
    if not isinstance(config, dict):
        raise bad_model("config.json is not an object", model.path)
    found = ModelFiles(model.path, model.kind, model.folder, model.weights, model.sentences, config)
    if model.kind == "transformers" and not config:
        raise _unknown(model.path, sorted(os.listdir(model.folder)))
    if not found.reads_images and not os.path.isfile(found.tokenizer):
        raise NotFound(
            "the model has no tokenizer.json", file=model.path, fix="Save the tokenizer beside it: its 'fast' form."
        )
    found.refuse_other_code()
    return found


def tensor_names(path: str) -> list[str]:
    """Return the names of the tensors of a safetensors file. Raises ConfigError."""
    with _opened(path) as file:
        return list(file.keys())


def read_tensors(path: str) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors of a safetensors file.

    Raises:
        ConfigError: The file is not safetensors, or has a type that numpy lacks.
        MissingExtra: The package safetensors is not installed.
    """
    with _opened(path) as file:
        try:
            return {name: np.asarray(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 - no mapping
        except Exception as error:  # the package raises its own kinds, without a base
            raise bad_model(f"a tensor cannot be read ({error})", path) from None


def _opened(path: str) -> Any:
    try:
        from safetensors import safe_open
    except ImportError:
        raise MissingExtra("models in safetensors need the package safetensors", "models") from None
    try:
        return safe_open(path, framework="numpy")
    except Exception as error:  # as above
        raise bad_model(f"this is not a safetensors file ({error})", path) from None


def _unknown(path: str, there: list[str]) -> ConfigError:
    pickled = [name for name in there if name.startswith("pytorch_model") or name.endswith((".pt", ".pkl", ".skops"))]
    if pickled:
        return bad_model(
            f"{pickled[0]} can run code when it is loaded, and is not read",
            path,
            "Save the model as safetensors, or export it to ONNX.",
        )
    shown = ", ".join(there[:8]) or "nothing"
    return bad_model(
        f"no model is recognized by its files ({shown}); expected model.onnx or model.safetensors with a tokenizer.json"
        " (of images: preprocessor_config.json) and a config.json, or a fastText model (.bin, .ftz)",
        path,
    )


def bad_model(what: str, path: str, fix: str = "Pass another model.") -> ConfigError:
    """Return the error for a model that cannot be used."""
    return ConfigError(what, file=path, kind="bad-model", fix=fix)


def _bad(what: str, path: str, fix: str) -> ConfigError:
    return ConfigError(what, file=path, kind="bad-option", fix=fix)
