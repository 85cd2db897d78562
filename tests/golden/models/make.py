"""Write the models of this folder, and what model2vec and onnxruntime, one by one, make of texts and images."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from model2vec import StaticModel
from model2vec.inference.mlp import Activation, Layer, MLPHead
from model2vec.inference.model import StaticModelPipeline
from onnx import helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

HERE = Path(__file__).parent
WORDS = "the a cat dog sat on mat and it was happy soup rain news of today ##s ##y ing .".split()
TEXTS = [
    "The cat sat on the mat and it was happy.",
    "rain",
    "news of today: soups and cats " * 9,
    "",
    "zebra",
    "A dog.\n\nA cat. Rainy news!",
]
D = 8
SHAPES = [(40, 50), (32, 32), (64, 33), (20, 90)]
"""Heights and widths of images, whose pixels are random numbers, with the seeds 0, 1, ..."""


def tokenizer() -> Tokenizer:
    vocabulary = {token: number for number, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def static(rng: np.random.Generator) -> dict[str, Any]:
    table = rng.standard_normal((tokenizer().get_vocab_size(), D)).astype(np.float32)
    weights = rng.random(len(table)).astype(np.float32)
    config = {"model_type": "model2vec", "architectures": ["StaticModel"]}
    model = StaticModel(table, tokenizer(), config=config, normalize=True, weights=weights, max_length=16)
    layers = [
        Layer(rng.standard_normal((b, a)).astype(np.float32), rng.standard_normal(b).astype(np.float32))
        for a, b in ((D, 6), (6, 3))
    ]
    head = MLPHead(layers, Activation.SOFTMAX, np.array(["science", "news", "1st person"]))
    whole = StaticModelPipeline(model, head)
    whole.save_pretrained(str(HERE / "static"))
    (HERE / "static" / "README.md").unlink()
    return {"scores": whole.predict_proba(TEXTS).tolist(), "vectors": model.encode(TEXTS).tolist()}


def network(rng: np.random.Generator) -> dict[str, Any]:
    """One layer of attention over embeddings, and a head on the first token."""
    weights, nodes = [], []

    def constant(value: Any, dtype: Any = np.float32) -> str:
        weights.append(numpy_helper.from_array(np.asarray(value, dtype), f"c{len(weights)}"))
        return str(weights[-1].name)

    def op(kind: str, *inputs: str, out: str = "", **facts: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [out or f"t{len(nodes)}"], **facts))
        return str(nodes[-1].output[0])

    def random(*shape: int) -> str:
        return constant(rng.standard_normal(shape))

    mask = op("Cast", "attention_mask", to=1)
    away = op("Mul", op("Sub", constant(1), op("Unsqueeze", mask, constant([1], np.int64))), constant(-1e4))
    length = op("Gather", op("Shape", "input_ids"), constant(1, np.int64))
    positions = op("Range", constant(0, np.int64), length, constant(1, np.int64))
    tokens = op("Gather", random(tokenizer().get_vocab_size(), D), "input_ids")
    states = op("Add", tokens, op("Gather", random(24, D), positions))
    query, key, value = (op("MatMul", states, random(D, D)) for _ in range(3))
    fit = op("Mul", op("MatMul", query, op("Transpose", key, perm=[0, 2, 1])), constant(D**-0.5))
    attended = op("MatMul", op("Softmax", op("Add", fit, away), axis=-1), value)
    states = op("Add", states, attended, out="last_hidden_state")
    first = op("Gather", states, constant(0, np.int64), axis=1)
    op("Gemm", first, random(D, 3), random(3), out="logits")
    inputs = [helper.make_tensor_value_info(name, 7, ["n", "l"]) for name in ("input_ids", "attention_mask")]
    outputs = [
        helper.make_tensor_value_info("logits", 1, ["n", 3]),
        helper.make_tensor_value_info("last_hidden_state", 1, ["n", "l", D]),
    ]
    graph = helper.make_graph(nodes, "network", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    folder = HERE / "onnx"
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    tokenizer().save(str(folder / "tokenizer.json"))
    config = {"model_type": "bert", "max_position_embeddings": 24, "pad_token_id": 0}
    config["id2label"] = {"0": "low", "1": "middle", "2": "high"}
    (folder / "config.json").write_text(json.dumps(config) + "\n")
    return {"onnx": outputs_of(folder / "model.onnx"), "quantized": quantized(folder)}


def quantized(plain: Path) -> dict[str, Any]:
    """The network with dynamically quantized products, as `model_quantized.onnx` of many repositories."""
    folder = HERE / "quantized"
    folder.mkdir(exist_ok=True)
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(plain / name, folder / name)
    quantize_dynamic(plain / "model.onnx", folder / "model.onnx")
    return outputs_of(folder / "model.onnx")


def outputs_of(model: Path) -> dict[str, Any]:
    """What onnxruntime makes of each text alone."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    cut, scores, vectors = tokenizer(), [], []
    cut.enable_truncation(24)
    for text in TEXTS:
        one = cut.encode(text)
        given = {"input_ids": np.array([one.ids]), "attention_mask": np.array([one.attention_mask])}
        logits, states_ = session.run(["logits", "last_hidden_state"], given)
        e = np.exp(logits[0].astype(np.float64) - logits[0].max())
        scores.append((e / e.sum()).tolist())
        vectors.append(states_[0].mean(axis=0).tolist())
    return {"scores": scores, "vectors": vectors}


def vision(rng: np.random.Generator) -> dict[str, Any]:
    """A convolution over patches and a projection, after CLIP's image processor, of images of noise."""
    import transformers
    from PIL import Image

    weights = {
        "kernel": rng.standard_normal((4, 3, 8, 8)) * 0.1,
        "projection": rng.standard_normal((64, D)),
    }
    nodes = [
        helper.make_node("Conv", ["pixel_values", "kernel"], ["patches"], strides=[8, 8]),
        helper.make_node("Flatten", ["patches"], ["flat"]),
        helper.make_node("Tanh", ["flat"], ["bent"]),
        helper.make_node("MatMul", ["bent", "projection"], ["image_embeds"]),
    ]
    stored = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    inputs = [helper.make_tensor_value_info("pixel_values", 1, ["n", 3, 32, 32])]
    outputs = [helper.make_tensor_value_info("image_embeds", 1, ["n", D])]
    graph = helper.make_graph(nodes, "vision", inputs, outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    folder = HERE / "vision"
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "onnx/vision_model.onnx")
    processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=32)
    processor.save_pretrained(str(folder))
    (folder / "config.json").write_text(json.dumps({"model_type": "clip"}) + "\n")
    session = onnxruntime.InferenceSession(str(folder / "onnx/vision_model.onnx"), providers=["CPUExecutionProvider"])
    vectors = []
    for seed, (height, width) in enumerate(SHAPES):
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
        given = processor(Image.fromarray(pixels), return_tensors="np")["pixel_values"]
        vectors.append(session.run(None, {"pixel_values": given})[0][0].tolist())
    return {"shapes": SHAPES, "vectors": vectors}


if __name__ == "__main__":
    generator = np.random.default_rng(7)
    found = {"texts": TEXTS, "static": static(generator), **network(generator)}
    found["vision"] = vision(np.random.default_rng(8))
    (HERE / "expected.json").write_text(json.dumps(found, indent=1) + "\n")
