"""Neural networks over tokens, ONNX and transformers, in batches sorted by length.

On a CPU a network runs on one thread of each process: the processes are parallel, and sums do not depend on the number
of cores. Batches depend on the texts of a block of a file alone, so results are the same for any number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from feedmill.curation.models.files import ModelFiles, Settings, bad_model
from feedmill.curation.models.texts import (
    MOST_TOKENS,
    Counts,
    Floats,
    Ints,
    Tokens,
    Windows,
    activated,
    averaged,
    labels_of,
    normalized,
    ranges,
)
from feedmill.errors import FeedmillError, MissingExtra

CPU_TOKENS = 512
"""Tokens of a batch on a CPU, with padding: more leave its caches, and pad more."""
GPU_TOKENS = 1 << 16
"""Tokens of a batch on a GPU, with padding. It is halved while the GPU has no memory for it."""
CHECKED = (1, 24)
"""Releases of onnxruntime from here on refuse data outside of the model's folder: 1.24.1 does, 1.22.1 reads it."""
_SHIFTED = ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "mpnet", "longformer")
"""Types of models whose positions begin behind that of the padding."""
_PROBES = ("a", "The cat sat on the mat.", "x = 10 ** 6  # 1,000,000", "One word, then many more: " * 3, "!")
"""Texts that show whether a network's results depend on the texts beside each one."""
_OFF, _OFF_HALF = 1e-4, 2e-2
"""Difference beyond that of rounding, relative to the largest output: of float32 on a CPU, and of others."""
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_PROBABILITIES = ("probabilities", "probs", "scores")


class Runner(Protocol):
    """Runs a network.

    Attributes:
        on_gpu: Whether it has the memory of a GPU.
        exact: Whether it computes in float32 on a CPU.
        labels: Number of the outputs of its head; 0 without one.
        activation: How its outputs become scores.
    """

    on_gpu: bool
    exact: bool
    labels: int
    activation: str

    def run(self, ids: Ints, mask: Ints) -> Floats:
        """Return the outputs for token ids and their mask, int64[n, length]: [n, labels], or vectors [n, d]."""


class Batched:
    """Runs a network over items in batches.

    Attributes:
        path: The model, as the user wrote it.
        runner: What runs a batch.
        cap: Most of the items' sizes in a batch, with padding. It is halved while a GPU has no memory for it.
        padding: What was added to make the items of a batch equally large.
    """

    path: str
    runner: Any
    cap: int
    padding: int = 0

    def outputs(self, sizes: Ints, run: Callable[[Ints], Floats]) -> Floats | None:
        """Return the output for each item, float32[n, d], zeros for those of size 0; None if all are.

        Args:
            sizes: Size of each item, int64[n].
            run: Returns the outputs for some items, given by their numbers in ascending order of size.
        """
        order, out = np.argsort(sizes, kind="stable"), None
        order = order[int((sizes == 0).sum()) :]
        waiting = list(batches(sizes[order], self.cap))[::-1]
        while waiting:
            low, high = waiting.pop()
            own = order[low:high]
            whole = len(own) * int(sizes[own[-1]])
            try:
                made = run(own)
            except Exception as error:  # torch and onnxruntime have no common kind
                if not (self.runner.on_gpu and high - low > 1 and _is_of_memory(error)):
                    raise self._failed(error) from error
                self.cap = max(1, whole // 2)
                waiting = [(low + begin, low + end) for begin, end in batches(sizes[order[low:]], self.cap)][::-1]
                continue
            self.padding += whole - int(sizes[own].sum())
            if out is None:
                out = np.zeros((len(sizes), made.shape[1]), np.float32)
            out[own] = made
        return out

    def _failed(self, error: Exception) -> FeedmillError:
        if isinstance(error, FeedmillError):
            return error
        what = " ".join(str(error).split())[:300]
        return bad_model(
            f"the model failed ({type(error).__name__}: {what})", self.path, "Try it on one input by hand."
        )


class Network(Batched):
    """A `TextModel` of a network over tokens.

    Args:
        vectors: Make vectors, by the pooling that the model's files say, by default the mean over tokens.

    Raises:
        ConfigError: The model cannot be loaded, or does something else.
        MissingExtra: A package is not installed.
    """

    alone = False

    def __init__(self, model: ModelFiles, settings: Settings, vectors: bool) -> None:
        self.counts, self.path = Counts(), model.path
        self.tokens = Tokens(model, _limit(model, settings), settings, special=True)
        self.pad = _padding(model, self.tokens)
        if model.kind == "onnx":
            self.runner: Runner = OnnxRunner(model, settings, vectors)
        else:
            self.runner = TransformersRunner(model, settings, vectors)
        self.cap = GPU_TOKENS if self.runner.on_gpu else CPU_TOKENS
        self.labels: tuple[str, ...] = ()
        if not vectors:
            self.labels = labels_of(model.config.get("id2label"), self.runner.labels, model.path)
        self.normalize = any(str(one.get("type", "")).endswith(".Normalize") for one in model.read_json("modules.json"))
        if self._depends():
            self.alone, self.cap = True, 1

    def _depends(self) -> bool:
        together = self._outputs(_PROBES)[0]
        alone = np.concatenate([self._outputs([text])[0] for text in _PROBES])
        self.counts.taken()
        return depends(together, alone, self.runner.exact)

    def scores(self, texts: Sequence[str]) -> Floats:
        outputs, windows, sizes = self._outputs(texts)
        found = averaged(activated(outputs, self.runner.activation), windows.text, sizes, len(texts), np.nan)
        if found.shape[1] != len(self.labels):
            raise bad_model(f"the model gave {found.shape[1]:,} scores for {len(self.labels):,} labels", self.path)
        self.counts.empty += int(np.isnan(found[:, 0]).sum())
        return found

    def vectors(self, texts: Sequence[str]) -> Floats:
        outputs, windows, sizes = self._outputs(texts)
        found = averaged(outputs, windows.text, sizes, len(texts), 0).astype(np.float32)
        self.counts.empty += len(texts) - int((np.bincount(windows.text, sizes, len(texts)) > 0).sum())
        return normalized(found) if self.normalize else found

    def _outputs(self, texts: Sequence[str]) -> tuple[Floats, Windows, Floats]:
        """Return the outputs for each window, the windows, and the number of tokens of each."""
        self.counts.documents += len(texts)
        self.counts.alone += len(texts) * self.alone
        windows = self.tokens.windows(texts, self.counts)
        sizes, starts = windows.sizes, np.cumsum(windows.sizes) - windows.sizes
        self.counts.tokens += len(windows.ids)

        def run(own: Ints) -> Floats:
            there = np.arange(int(sizes[own[-1]])) < sizes[own][:, None]
            ids = np.full(there.shape, self.pad, np.int64)
            ids[there] = windows.ids[ranges(starts[own], sizes[own])]
            return self.runner.run(ids, there.astype(np.int64))

        self.padding = 0
        out = self.outputs(sizes, run)
        self.counts.padding += self.padding
        if out is None:
            out = np.zeros((len(sizes), max(1, len(self.labels))), np.float32)
        return out, windows, sizes.astype(np.float64)


def depends(together: Floats, alone: Floats, exact: bool) -> bool:
    """Return whether results depend on the items beside each one, by those of some items together and alone.

    Those of most "quantized" exports do: DynamicQuantizeLinear has one scale for a batch
    (findings/onnxruntime_quantized_batches). So do those of models without a mask, which read the padding.

    Args:
        exact: The network computes in float32 on a CPU, where rounding is small.
    """
    off = np.abs(alone - together).max() / max(1.0, np.abs(alone).max())
    return not off <= (_OFF if exact else _OFF_HALF)


def batches(sizes: Ints, cap: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of batches of windows of ascending sizes, padded each to up to `cap` tokens, or of one window.

    >>> list(batches(np.array([2, 3, 3, 9]), 8))
    [(0, 2), (2, 3), (3, 4)]
    """
    low = 0
    for high, size in enumerate(sizes.tolist()):
        if high > low and (high + 1 - low) * size > cap:
            yield low, high
            low = high
    if low < len(sizes):
        yield low, len(sizes)


def _is_of_memory(error: Exception) -> bool:
    text = f"{type(error).__name__} {error}".lower()
    return "outofmemory" in text or "out of memory" in text or "failed to allocate" in text


def _limit(model: ModelFiles, settings: Settings) -> int:
    """Return the tokens of a window. Raises ConfigError if the user wants more than the model takes."""
    config, said = model.config, list[int]()
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int):
        shift = int(config.get("pad_token_id") or 1) + 1 if config.get("model_type") in _SHIFTED else 0
        said.append(positions - shift)
    most = model.read_json("tokenizer_config.json").get("model_max_length")
    if isinstance(most, int | float) and 0 < most < 1 << 31:
        said.append(int(most))
    if settings.tokens is None:
        return min([*said, MOST_TOKENS])
    if said and settings.tokens > min(said):
        raise bad_model(f"tokens={settings.tokens}: the model takes up to {min(said):,}", model.path, "Use fewer.")
    return settings.tokens


def _padding(model: ModelFiles, tokens: Tokens) -> int:
    found = model.config.get("pad_token_id")
    if found is None and tokens.padding is not None:
        found = tokens.padding["pad_id"]
    if found is None:
        names = ("[PAD]", "<pad>", "<|padding|>")
        found = next((one for name in names if (one := tokens.tokenizer.token_to_id(name)) is not None), 0)
    return int(found)


def _activation(model: ModelFiles, labels: int) -> str:
    """Return how outputs become scores, as pipelines of transformers do it; one output is a score as it is."""
    if labels == 1 or model.config.get("problem_type") == "regression":
        return "identity"
    return "sigmoid" if model.config.get("problem_type") == "multi_label_classification" else "softmax"


def pooled(states: Floats, mask: Floats, pooling: str) -> Floats:
    """Return the vector of each text from those of its tokens, [n, length, d]: the mean, or the first."""
    if pooling == "cls":
        return states[:, 0]
    weights = mask[:, :, None].astype(states.dtype)
    found: Floats = (states * weights).sum(axis=1) / weights.sum(axis=1)
    return found


def _pooling(model: ModelFiles) -> str:
    config = model.read_json("1_Pooling/config.json")
    chosen = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    if len(chosen) > 1 or any(name not in known for name in chosen):
        raise bad_model(f"pooling by {', '.join(chosen)} is not supported", model.path, "Use mean or CLS pooling.")
    return known[chosen[0]] if chosen else "mean"


def open_onnx(model: ModelFiles, settings: Settings) -> tuple[Any, bool]:
    """Return a session of an ONNX model on one thread, or on a GPU, and whether it is on one.

    Data outside of the model's folder and libraries of operators are never loaded.
    """
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtra("ONNX models need the package onnxruntime", "models") from None
    if tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) < CHECKED:
        what = f"onnxruntime {onnxruntime.__version__} reads files that a model names, wherever they are"
        raise MissingExtra(f"{what}; {'.'.join(map(str, CHECKED))} or newer is needed", "models")
    if settings.dtype is not None:
        raise bad_model("an ONNX model has the types that it was exported with", model.path, "Leave out dtype.")
    there = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    if settings.device == "cuda" and not there:
        fix = "Install onnxruntime-gpu, or use device=cpu."
        raise bad_model("this onnxruntime cannot use a GPU", model.path, fix)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    providers = ["CUDAExecutionProvider"] * (there and settings.device != "cpu") + ["CPUExecutionProvider"]
    try:
        session = onnxruntime.InferenceSession(model.weights, options, providers=providers)
    except Exception as error:  # the package's kinds have no common base
        what = " ".join(str(error).split())[:300]
        raise bad_model(f"the model cannot be loaded ({what})", model.weights) from None
    return session, session.get_providers()[0].startswith("CUDA")


class OnnxRunner:
    """Runs an ONNX model over tokens."""

    def __init__(self, model: ModelFiles, settings: Settings, vectors: bool) -> None:
        self.session, self.on_gpu = open_onnx(model, settings)
        self.exact = not (self.on_gpu or any("float16" in one.type for one in self.session.get_outputs()))
        self.inputs = {one.name: np.int32 if "int32" in one.type else np.int64 for one in self.session.get_inputs()}
        if unknown := [name for name in self.inputs if name not in _INPUTS]:
            raise bad_model(f"the model has inputs that are not tokens: {', '.join(unknown)}", model.path)
        if "input_ids" not in self.inputs:
            raise bad_model("the model has no input 'input_ids'", model.path)
        if any(isinstance(size, int) for size in self.session.get_inputs()[0].shape):
            raise bad_model("the model takes batches of one shape only", model.path, "Export it with dynamic axes.")
        shapes = {one.name: one.shape for one in self.session.get_outputs()}
        self.labels, self.activation, self.pooling = 0, "identity", ""
        if vectors:
            self._find_vectors(model, shapes)
        else:
            self._find_head(model, shapes)

    def _find_head(self, model: ModelFiles, shapes: dict[str, Sequence[Any]]) -> None:
        flat = [name for name, shape in shapes.items() if len(shape) == 2]
        named = next((name for name in ("logits", *_PROBABILITIES) if name in flat), None)
        self.output = named or (flat[0] if len(flat) == 1 == len(shapes) else "")
        if self.output in ("", "sentence_embedding"):
            what = f"the model has no scores among its outputs: {', '.join(shapes)}"
            raise bad_model(what, model.path, "Export a classifier, with the output 'logits'.")
        width = shapes[self.output][1]
        self.labels = width if isinstance(width, int) else len(model.config.get("id2label") or "1")
        self.activation = "identity" if self.output in _PROBABILITIES else _activation(model, self.labels)

    def _find_vectors(self, model: ModelFiles, shapes: dict[str, Sequence[Any]]) -> None:
        for name, rank in (("sentence_embedding", 2), ("last_hidden_state", 3), ("token_embeddings", 3)):
            if name in shapes and len(shapes[name]) == rank:
                self.output, self.pooling = name, "" if rank == 2 else _pooling(model)
                return
        single = list(shapes) if len(shapes) == 1 else []
        if single and len(shapes[single[0]]) == 3:
            self.output, self.pooling = single[0], _pooling(model)
            return
        what = f"the model has no vectors among its outputs: {', '.join(shapes)}"
        raise bad_model(what, model.path, "Export it with 'last_hidden_state' or 'sentence_embedding'.")

    def run(self, ids: Ints, mask: Ints) -> Floats:
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        feed = {name: given[name].astype(dtype, copy=False) for name, dtype in self.inputs.items()}
        made: Floats = np.asarray(self.session.run([self.output], feed)[0], np.float32)
        return pooled(made, mask, self.pooling) if self.pooling else made


class OpenedModel:
    """A model of transformers from a local folder, on one thread or on a GPU. Code of the model's own is never run.

    Args:
        kind: Name of the class of transformers that loads it.

    Attributes:
        model: The model.
        on_gpu, exact: As of a `Runner`.
        missing: Names of weights that the files lack.
    """

    def __init__(self, model: ModelFiles, settings: Settings, kind: str) -> None:
        try:
            import torch
            import transformers
        except ImportError:
            raise MissingExtra("models of transformers need the packages torch and transformers", "torch") from None
        self.torch: Any = torch
        there = torch.cuda.is_available()
        if settings.device == "cuda" and not there:
            raise bad_model("torch finds no GPU", model.path, "Use device=cpu.")
        self.device = "cuda" if there and settings.device != "cpu" else "cpu"
        self.on_gpu = self.device == "cuda"
        dtype = settings.dtype or ("auto" if self.on_gpu else "float32")
        self.exact = not self.on_gpu and dtype == "float32"
        local = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
        loads: Any = getattr(transformers, kind)
        try:
            self.model, facts = loads.from_pretrained(model.folder, dtype=dtype, output_loading_info=True, **local)
            self.model.eval().to(self.device)
        except (OSError, ValueError, AttributeError, RuntimeError, ImportError, KeyError) as error:
            what = " ".join(str(error).split())[:300]
            raise bad_model(f"the model cannot be loaded ({what})", model.path) from None
        self.missing = sorted(map(str, facts["missing_keys"]))

    def __call__(self, call: Callable[..., Any], **given: npt.NDArray[Any]) -> Any:
        """Return what `call` returns for arrays, which are moved to the device."""
        torch, threads = self.torch, self.torch.get_num_threads()
        if not self.on_gpu:
            torch.set_num_threads(1)
        try:
            with torch.inference_mode():
                return call(**{name: torch.from_numpy(value).to(self.device) for name, value in given.items()})
        finally:
            if not self.on_gpu:
                torch.set_num_threads(threads)


class TransformersRunner:
    """Runs a model of transformers over tokens."""

    def __init__(self, model: ModelFiles, settings: Settings, vectors: bool) -> None:
        architectures = [str(name) for name in model.config.get("architectures") or ()]
        if not vectors and not any(name.endswith("ForSequenceClassification") for name in architectures):
            what = f"the model is not a sequence classifier (architectures: {', '.join(architectures) or 'none'})"
            raise bad_model(what, model.path)
        kind = "AutoModel" if vectors else "AutoModelForSequenceClassification"
        self.opened = OpenedModel(model, settings, kind)
        self.on_gpu, self.exact = self.opened.on_gpu, self.opened.exact
        self.labels = 0 if vectors else int(self.opened.model.config.num_labels)
        self.activation = _activation(model, self.labels)
        self.pooling = _pooling(model) if vectors else ""

    def run(self, ids: Ints, mask: Ints) -> Floats:
        made = self.opened(self.opened.model, input_ids=ids, attention_mask=mask)
        values: Floats = (made.last_hidden_state if self.pooling else made.logits).float().cpu().numpy()
        return pooled(values, mask, self.pooling) if self.pooling else values
