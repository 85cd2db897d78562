"""Networks over images, ONNX and transformers: pixels prepared as ``preprocessor_config.json`` says, then vectors.

The steps are those of transformers' image processors for CLIP, SigLIP, ViT, DeiT and DINOv2 (``BitImageProcessor``) on
Pillow: resize, crop around the center, rescale, normalize. Pixels are equal to theirs, bit by bit.

On a CPU a network runs on one image at a time: its patches fill the caches, and results do not depend on a batch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from feedmill.curation.models.files import ModelFiles, Settings, bad_model
from feedmill.curation.models.networks import Batched, OpenedModel, depends, open_onnx
from feedmill.curation.models.texts import Floats
from feedmill.errors import ConfigError, MissingExtra

Pixels = npt.NDArray[np.uint8]
BLOCK_BYTES = 64 << 20
"""Memory of the images that are prepared at once."""
GPU_IMAGES = 256
"""Images of a batch on a GPU. It is halved while the GPU has no memory for it."""
_CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
_HALF = ([0.5] * 3, [0.5] * 3)


class _Defaults(NamedTuple):
    """What a kind of image processor does where its file does not say."""

    size: Mapping[str, int]
    crop: int
    resample: int
    colors: tuple[list[float], list[float]]
    square: bool = False


_KINDS = {
    "CLIP": _Defaults({"shortest_edge": 224}, 224, 3, _CLIP),
    "Bit": _Defaults({"shortest_edge": 224}, 224, 3, _CLIP),
    "Siglip": _Defaults({"height": 224, "width": 224}, 0, 3, _HALF),
    "ViT": _Defaults({"height": 224, "width": 224}, 0, 2, _HALF, True),
    "DeiT": _Defaults({"height": 256, "width": 256}, 224, 3, _HALF, True),
}
_SUFFIX = re.compile(r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$")


class Preparation:
    """Images as a model takes them.

    Attributes:
        shape: Height and width of the result.

    Raises:
        ConfigError: The file of the model asks for steps that are not known here.
        MissingExtra: Pillow is not installed.
    """

    def __init__(self, model: ModelFiles) -> None:
        try:
            from PIL import Image
        except ImportError:
            raise MissingExtra("models of images need Pillow", "media") from None
        self.image, self.path = Image, model.processor
        given = model.read_json(os.path.relpath(model.processor, model.folder))
        given = given.get("image_processor") or given  # of a processor of images and texts
        named = str(given.get("image_processor_type") or given.get("feature_extractor_type") or "")
        kind = _KINDS.get(_SUFFIX.sub("", named))
        if kind is None:
            known = ", ".join(f"{name}ImageProcessor" for name in _KINDS)
            raise self._bad(f"the image processor {named or '(none)'} is unknown", f"Known are {known}.")
        said = {name: given.get(f"do_{name}", True) for name in ("resize", "rescale", "normalize")}
        self.size = self._sides(given.get("size"), kind.size, kind.square) if said["resize"] else None
        cropped = given.get("do_center_crop", bool(kind.crop))
        side = {"height": kind.crop or 224, "width": kind.crop or 224}
        self.crop = self._sides(given.get("crop_size"), side, True) if cropped else None
        if self.crop is None and (self.size is None or "height" not in self.size):
            raise self._bad("images would have any shape: there is neither a crop nor a height and width")
        shape = self.crop or self.size
        assert shape is not None
        if "height" not in shape:
            raise self._bad("crop_size has no height and width")
        self.shape = (shape["height"], shape["width"])
        self.resample = self._whole("resample", given.get("resample", kind.resample))
        # All values of a byte take the steps in transformers' types: float64 for the product, then float32.
        values = np.arange(256, dtype=np.float32)
        if said["rescale"]:
            values = (np.arange(256, dtype=np.float64) * float(given.get("rescale_factor", 1 / 255))).astype(np.float32)
        self.values = np.stack([values] * 3)
        if said["normalize"]:
            mean, deviation = (
                np.asarray(given.get(name, usual), np.float32).reshape(-1)
                for name, usual in zip(("image_mean", "image_std"), kind.colors, strict=True)
            )
            if not {len(mean), len(deviation)} <= {1, 3}:
                raise self._bad("image_mean and image_std must have three numbers")
            self.values = (self.values - mean[:, None]) / deviation[:, None]

    def _sides(self, given: Any, usual: Mapping[str, int], square: bool) -> Mapping[str, int]:
        """Return ``height`` and ``width``, or ``shortest_edge``."""
        if given is None:
            return usual
        if isinstance(given, int):
            return {"height": given, "width": given} if square else {"shortest_edge": given}
        if isinstance(given, list) and len(given) == 2:
            given = {"height": given[0], "width": given[1]}
        found = {name: value for name, value in dict(given).items() if value is not None} if given else {}
        if set(found) not in ({"height", "width"}, {"shortest_edge"}):
            raise self._bad(
                f"a size of {', '.join(found) or given} is unknown", "Use height and width, or shortest_edge."
            )
        return {name: self._whole(name, value) for name, value in found.items()}

    def _whole(self, name: str, value: Any) -> int:
        if type(value) is not int or value < 0:
            raise self._bad(f"{name} is {value!r}, and not a whole number")
        return value

    def _bad(self, what: str, fix: str = "Export the model with its own image processor.") -> ConfigError:
        return bad_model(what, self.path, fix)

    def __call__(self, pixels: Pixels) -> Floats:
        """Return pixels uint8[H, W, 3] as the model takes them, float32[3, h, w]."""
        if self.size is not None:
            height, width = pixels.shape[:2]
            if "shortest_edge" in self.size:
                short = self.size["shortest_edge"]
                long = int(short * max(height, width) / min(height, width))
                to = (short, long) if width <= height else (long, short)
            else:
                to = (self.size["width"], self.size["height"])
            pixels = np.asarray(self.image.fromarray(pixels).resize(to, self.resample))
        if self.crop is not None:
            pixels = cropped(pixels, *self.shape)
        return np.stack([self.values[color][pixels[..., color]] for color in range(3)])


def cropped(pixels: Pixels, height: int, width: int) -> Pixels:
    """Return the middle of an image, [height, width, 3]; what lies outside of it is black."""
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    out = np.zeros((height, width, 3), np.uint8)
    inside = pixels[max(0, top) : top + height, max(0, left) : left + width]
    out[max(0, -top) : max(0, -top) + len(inside), max(0, -left) : max(0, -left) + inside.shape[1]] = inside
    return out


class _Runner(Protocol):
    on_gpu: bool

    def run(self, images: Floats) -> Floats:
        """Return vectors of images float32[n, 3, h, w], [n, d]."""


class ImageModel(Batched):
    """A model that makes vectors of images. Its results do not depend on the images beside each one.

    Attributes:
        prepare: Makes of pixels what the model takes.
        block: Number of images to prepare at once.

    Raises:
        ConfigError: The model cannot be loaded, or does something else.
        MissingExtra: A package is not installed.
    """

    def __init__(self, model: ModelFiles, settings: Settings) -> None:
        if settings.tokens is not None or settings.long != "first":
            raise bad_model("tokens and long are settings of models of texts", model.path, "Leave them out.")
        self.path, self.prepare = model.path, Preparation(model)
        if model.kind == "onnx":
            self.runner: _Runner = _Onnx(model, settings, self.prepare.shape)
        else:
            self.runner = _Transformers(model, settings)
        self.cap = GPU_IMAGES if self.runner.on_gpu else 1
        if self.cap > 1 and self._depends():
            self.cap = 1
        self.block = max(1, min(GPU_IMAGES, BLOCK_BYTES // (12 * self.prepare.shape[0] * self.prepare.shape[1])))

    def _depends(self) -> bool:
        noise = np.random.default_rng(0).standard_normal((4, 3, *self.prepare.shape), np.float32)
        probes = list(noise * np.array([0.1, 0.5, 1, 2], np.float32)[:, None, None, None])
        alone = np.concatenate([self.vectors([image]) for image in probes])
        return depends(self.vectors(probes), alone, exact=False)

    def vectors(self, images: Sequence[Floats | None]) -> Floats:
        """Return a vector of each prepared image, float32[n, d]; zeros for None."""
        there = np.array([image is not None for image in images], np.int64)
        found = self.outputs(there, lambda own: self._run([images[k] for k in own.tolist()]))
        return np.zeros((len(images), self.dimension), np.float32) if found is None else found

    def _run(self, images: Sequence[Any]) -> Floats:
        return self.runner.run(np.stack(images))

    @cached_property
    def dimension(self) -> int:
        """Numbers of a vector."""
        return int(self.runner.run(np.zeros((1, 3, *self.prepare.shape), np.float32)).shape[1])


class _Onnx:
    """Runs an ONNX model with one input of pixels."""

    def __init__(self, model: ModelFiles, settings: Settings, shape: tuple[int, int]) -> None:
        self.session, self.on_gpu = open_onnx(model, settings)
        inputs = self.session.get_inputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4:
            names = ", ".join(one.name for one in inputs)
            fix = "Pass the part that reads images, such as vision_model.onnx."
            raise bad_model(f"the model takes more than images, or something else: {names}", model.path, fix)
        if isinstance(inputs[0].shape[0], int):
            raise bad_model("the model takes batches of one size only", model.path, "Export it with dynamic axes.")
        if any(
            isinstance(have, int) and have != want for have, want in zip(inputs[0].shape[1:], (3, *shape), strict=True)
        ):
            have = " x ".join(map(str, inputs[0].shape[1:]))
            raise bad_model(
                f"the model takes images of {have}, and its processor makes 3 x {shape[0]} x {shape[1]}", model.path
            )
        self.input, self.dtype = inputs[0].name, np.float16 if "float16" in inputs[0].type else np.float32
        ranks = {one.name: len(one.shape) for one in self.session.get_outputs()}
        flat = [name for name, rank in ranks.items() if rank == 2 and name != "logits"]
        named = [name for name in ("image_embeds", "sentence_embedding", "pooler_output") if name in flat]
        named += flat if len(flat) == 1 else []
        self.first = not named
        named += [
            name for name, rank in ranks.items() if rank == 3 and (name == "last_hidden_state" or len(ranks) == 1)
        ]
        if not named:
            fix = "Export it with 'image_embeds', 'pooler_output' or 'last_hidden_state'."
            raise bad_model(f"the model has no vectors among its outputs: {', '.join(ranks)}", model.path, fix)
        self.output = named[0]

    def run(self, images: Floats) -> Floats:
        made = np.asarray(self.session.run([self.output], {self.input: images.astype(self.dtype)})[0], np.float32)
        return made[:, 0] if self.first else made


class _Transformers:
    """Runs a vision model of transformers, or that part of a model of images and texts."""

    def __init__(self, model: ModelFiles, settings: Settings) -> None:
        names = [str(name) for name in model.config.get("architectures") or ()]
        kind = next((name for name in names if re.search(r"Vision(Model|ModelWithProjection)$", name)), "AutoModel")
        self.opened = OpenedModel(model, settings, kind)
        self.on_gpu = self.opened.on_gpu
        pooler = [name for name in self.opened.missing if "pooler" in name]
        if others := sorted(set(self.opened.missing) - set(pooler)):
            raise bad_model(f"the files lack weights: {', '.join(others[:3])}", model.path)
        own: Any = self.opened.model
        self.call, self.pooled = getattr(own, "get_image_features", own), not pooler
        self.dtype = own.dtype
        if not hasattr(own, "get_image_features") and own.main_input_name != "pixel_values":
            raise bad_model("the model does not read images", model.path)

    def run(self, images: Floats) -> Floats:
        made = self.opened(
            lambda pixel_values: self.call(pixel_values=pixel_values.to(self.dtype)), pixel_values=images
        )
        if not hasattr(made, "last_hidden_state"):  # a tensor, before transformers 5
            found = made
        elif getattr(made, "image_embeds", None) is not None:
            found = made.image_embeds
        elif self.pooled and getattr(made, "pooler_output", None) is not None:
            found = made.pooler_output
        else:
            found = made.last_hidden_state[:, 0]
        values: Floats = found.float().cpu().numpy()
        return values.reshape(len(values), -1)
