#!/usr/bin/env bash
# What a dynamically quantized ONNX classifier makes of a text depends on the texts beside it in the batch.
#
# `quantize_dynamic`, from which the files `model_quantized.onnx` come, writes DynamicQuantizeLinear before each product.
# It has one scale for its whole input, so a batch shares one: the largest number of any text decides how finely all
# others are rounded. Padding is not needed for it; all rows here have 32 tokens. The network that it was made from gives
# the same scores in any batch, to rounding.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" - 2> /dev/null <<'PYTHON'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

LAYERS, WIDTH, TEXTS, LENGTH = 6, 128, 512, 32
rng = np.random.default_rng(0)
weights = {"words": rng.standard_normal((1000, WIDTH)) * rng.lognormal(0, 1, (1000, 1)), "last": rng.standard_normal((WIDTH, 2))}
weights["last"] /= 3
nodes, states = [helper.make_node("Gather", ["words", "ids"], ["s0"])], "s0"
for n in range(LAYERS):
    weights[f"w{n}"] = rng.standard_normal((WIDTH, WIDTH)) * (2 / WIDTH) ** 0.5
    nodes += [helper.make_node("MatMul", [f"s{n}", f"w{n}"], [f"p{n}"]), helper.make_node("Relu", [f"p{n}"], [f"s{n + 1}"])]
nodes.append(helper.make_node("ReduceMean", [f"s{LAYERS}", "axis"], ["mean"], keepdims=0))
nodes.append(helper.make_node("MatMul", ["mean", "last"], ["logits"]))
held = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
graph = helper.make_graph(
    nodes, "classifier",
    [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
    [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
    [*held, numpy_helper.from_array(np.array([1]), "axis")],
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), "plain.onnx")
quantize_dynamic("plain.onnx", "quantized.onnx")
ids = rng.integers(0, 1000, (TEXTS, LENGTH))
for name in ("plain", "quantized"):
    session = onnxruntime.InferenceSession(f"{name}.onnx")
    alone, together = (
        np.concatenate([session.run(None, {"ids": ids[n : n + size]})[0] for n in range(0, TEXTS, size)]) for size in (1, 32)
    )
    alone, together = (1 / (1 + np.exp(found[:, 0] - found[:, 1])) for found in (alone, together))
    off, turned = np.abs(alone - together).max(), int(((alone > 0.5) != (together > 0.5)).sum())
    print(f"onnxruntime {onnxruntime.__version__}, {name}: alone and in batches of 32, scores of {TEXTS} texts differ")
    print(f"  by up to {off:.1e}; {turned} are on the other side of 0.5")
    assert off < 1e-4 if name == "plain" else off > 1e-2, "changed"
PYTHON
