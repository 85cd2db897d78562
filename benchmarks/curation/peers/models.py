"""Make the models of the part `models`, and run them with their own packages, as their guides do and by hand.

make FOLDER | static-loop|static-batch|onnx-loop|onnx-batch FOLDER COUNT
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, LAYERS, HEADS, LABELS, MOST = 128, 2, 2, 3, 512
WIDTH = 256
BATCH = 32


def texts(folder: Path, count: int) -> list[str]:
    """Return the texts of the first documents."""
    with open(folder / "documents/0.jsonl") as rows:
        return [json.loads(row)["text"] for _, row in zip(range(count), rows, strict=False)]


def make(folder: Path) -> None:
    """Train a vocabulary of 30,000 pieces, and write a static model and a network with random weights that use it."""
    from model2vec import StaticModel
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=30_000, special_tokens=special, show_progress=False)
    made.train_from_iterator(texts(folder, 20_000), trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    rng, size = np.random.default_rng(0), made.get_vocab_size()
    facts = {"model_type": "model2vec", "architectures": ["StaticModel"]}
    table = rng.standard_normal((size, WIDTH)).astype(np.float32)
    StaticModel(table, made, config=facts, normalize=True).save_pretrained(str(folder / "static"))
    (folder / "onnx").mkdir(exist_ok=True)
    made.save(str(folder / "onnx/tokenizer.json"))
    labels = {str(k): name for k, name in enumerate(("low", "middle", "high"))}
    facts = {"model_type": "bert", "max_position_embeddings": MOST, "pad_token_id": 0, "id2label": labels}
    (folder / "onnx/config.json").write_text(json.dumps(facts))
    _write_network(str(folder / "onnx/model.onnx"), rng, size)


def _write_network(path: str, rng: Any, size: int) -> None:
    """Write an encoder as BERT's, in the operators of an export, with a head on the first token."""
    import onnx
    from onnx import helper, numpy_helper

    weights: list[Any] = []
    nodes: list[Any] = []

    def constant(value: Any, dtype: Any = np.float32) -> str:
        weights.append(numpy_helper.from_array(np.asarray(value, dtype), f"c{len(weights)}"))
        return str(weights[-1].name)

    def op(kind: str, *inputs: str, out: str = "", **facts: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [out or f"t{len(nodes)}"], **facts))
        return str(nodes[-1].output[0])

    def random(*shape: int) -> str:
        return constant(rng.standard_normal(shape) * 0.08)

    def linear(given: str, before: int, after: int) -> str:
        return op("Add", op("MatMul", given, random(before, after)), random(after))

    def normal(given: str) -> str:
        return op("LayerNormalization", given, constant(np.ones(HIDDEN)), constant(np.zeros(HIDDEN)), axis=-1)

    mask = op("Unsqueeze", op("Cast", "attention_mask", to=1), constant([1, 2], np.int64))
    away = op("Mul", op("Sub", constant(1), mask), constant(-1e4))
    length = op("Gather", op("Shape", "input_ids"), constant(1, np.int64))
    places = op("Range", constant(0, np.int64), length, constant(1, np.int64))
    states = normal(
        op("Add", op("Gather", random(size, HIDDEN), "input_ids"), op("Gather", random(MOST, HIDDEN), places))
    )
    apart, whole = constant([0, 0, HEADS, HIDDEN // HEADS], np.int64), constant([0, 0, HIDDEN], np.int64)
    for _ in range(LAYERS):
        query, key, value = (
            op("Transpose", op("Reshape", linear(states, HIDDEN, HIDDEN), apart), perm=[0, 2, 1, 3]) for _ in range(3)
        )
        fit = op("MatMul", query, op("Transpose", key, perm=[0, 1, 3, 2]))
        fit = op("Add", op("Mul", fit, constant((HIDDEN // HEADS) ** -0.5)), away)
        seen = op("Transpose", op("MatMul", op("Softmax", fit, axis=-1), value), perm=[0, 2, 1, 3])
        states = normal(op("Add", states, linear(op("Reshape", seen, whole), HIDDEN, HIDDEN)))
        inner = linear(states, HIDDEN, 4 * HIDDEN)
        curve = op("Add", op("Erf", op("Div", inner, constant(2**0.5))), constant(1))
        inner = op("Mul", op("Mul", inner, curve), constant(0.5))
        states = normal(op("Add", states, linear(inner, 4 * HIDDEN, HIDDEN)))
    first = op("Gather", states, constant(0, np.int64), axis=1)
    op("Gemm", first, random(HIDDEN, LABELS), random(LABELS), out="logits")
    inputs = [helper.make_tensor_value_info(name, 7, ["n", "l"]) for name in ("input_ids", "attention_mask")]
    outputs = [helper.make_tensor_value_info("logits", 1, ["n", LABELS])]
    graph = helper.make_graph(nodes, "network", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def static(folder: Path, batched: bool, given: list[str]) -> tuple[float, Any]:
    """Return the processor time and the vectors of model2vec."""
    from model2vec import StaticModel

    model = StaticModel.from_pretrained(str(folder / "static"), force_download=False)
    begin = time.process_time()
    if batched:
        found = model.encode(given, use_multiprocessing=False)
    else:
        found = np.concatenate([model.encode([text]) for text in given])
    return time.process_time() - begin, found


def onnx(folder: Path, batched: bool, given: list[str]) -> tuple[float, Any]:
    """Return the processor time and the scores of onnxruntime, with a session as it is made by default.

    By hand: on one thread, in batches of texts sorted by their characters.
    """
    import onnxruntime
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    if batched:
        options.intra_op_num_threads = 1
    path = str(folder / "onnx/model.onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(folder / "onnx/tokenizer.json"))
    tokenizer.enable_truncation(MOST)
    tokenizer.enable_padding(pad_id=0)
    begin = time.process_time()
    order = sorted(range(len(given)), key=lambda k: len(given[k])) if batched else range(len(given))
    found, step = np.zeros((len(given), LABELS)), BATCH if batched else 1
    for low in range(0, len(given), step):
        own = list(order[low : low + step])
        encoded = tokenizer.encode_batch([given[k] for k in own])
        ids, mask = (np.array([getattr(one, name) for one in encoded]) for name in ("ids", "attention_mask"))
        (logits,) = session.run(["logits"], {"input_ids": ids, "attention_mask": mask})
        powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        found[own] = powers / powers.sum(axis=1, keepdims=True)
    return time.process_time() - begin, found


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    what, place = sys.argv[1], Path(sys.argv[2])
    if what == "make":
        make(place)
        print("{}")
    else:
        kind, way = what.split("-")
        seconds, values = {"static": static, "onnx": onnx}[kind](place, way == "batch", texts(place, int(sys.argv[3])))
        np.save(place / f"{what}.npy", values)
        print(json.dumps({"cpu_s": seconds}))
