"""Models as taggers: scores equal those of their own packages, whatever texts are beside each one."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.cli.tag import of_model
from feedmill.curation.models import texts as of_texts
from feedmill.curation.models.files import Settings, find_model, parse
from feedmill.curation.models.networks import CPU_TOKENS, Network, batches
from feedmill.curation.models.tagger import load
from feedmill.curation.models.texts import Counts, Tokens, Words, averaged, labels_of
from feedmill.curation.plugins import DocResult, Document, built_in
from feedmill.curation.registry import Choice
from feedmill.curation.tag import tag
from feedmill.errors import ConfigError, FeedmillError, MissingExtra, NotFound
from helpers.document_datasets import attributes, contents, document, write_documents

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
GOLDEN = Path(__file__).parents[1] / "golden/models"
FASTTEXT = GOLDEN.parent / "dolma/tag/models/tiny.bin"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
TEXTS: list[str] = EXPECTED["texts"]
TOLERANCE = 1e-6


def opened(text: str, vectors: bool = False) -> Any:
    path, settings = parse(text)
    return load(find_model(path), settings, vectors)


def test_static_scores_and_vectors_equal_those_of_model2vec() -> None:
    model = opened(f"model:{GOLDEN}/static")
    scores, wanted = model.scores(TEXTS), np.array(EXPECTED["static"]["scores"])
    assert model.labels == ("science", "news", "label_1st person")
    tokenless = np.isnan(scores).any(axis=1)
    assert tokenless.tolist() == [text in ("", "zebra") for text in TEXTS]
    assert np.abs(scores - wanted)[~tokenless].max() < TOLERANCE
    assert (model.counts.documents, model.counts.empty, model.counts.cut) == (6, 2, 1)
    vectors = opened(f"model:{GOLDEN}/static", vectors=True).vectors(TEXTS)
    assert np.abs(vectors - np.array(EXPECTED["static"]["vectors"])).max() < TOLERANCE and vectors.dtype == np.float32


def test_quantized_and_plain_static_models(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    plain = load_file(GOLDEN / "static/model.safetensors")["embeddings"]
    shutil.copytree(GOLDEN / "static", tmp_path / "m")
    (tmp_path / "m/head.safetensors").unlink()
    mapping = np.arange(len(plain)) // 2
    save_file({"embeddings": (plain[: len(plain) // 2 + 1] * 40).astype(np.int8), "mapping": mapping},
              tmp_path / "m/model.safetensors")  # fmt: skip
    rows = (plain[: len(plain) // 2 + 1] * 40).astype(np.int8)[mapping].astype(np.float32)
    model = opened(str(tmp_path / "m"), vectors=True)
    ids = model.tokens.tokenizer.encode("the cat sat", add_special_tokens=False).ids
    mean = rows[ids].mean(axis=0)
    assert model.vectors(["the cat sat"])[0] == pytest.approx(mean / np.linalg.norm(mean), abs=TOLERANCE)
    with pytest.raises(ConfigError, match="has no head"):
        opened(str(tmp_path / "m"))
    (tmp_path / "m/pipeline.skops").write_bytes(b"PK")
    with pytest.raises(ConfigError, match="can run code, and is not read"):
        opened(str(tmp_path / "m"))


def test_onnx_scores_and_vectors_equal_those_of_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    model = opened(f"model:{GOLDEN}/onnx")
    assert model.labels == ("low", "middle", "high")
    assert np.abs(model.scores(TEXTS) - np.array(EXPECTED["onnx"]["scores"])).max() < TOLERANCE
    assert (model.counts.cut, model.counts.empty, model.counts.alone) == (1, 0, 0) and model.counts.padding > 0
    alone = np.concatenate([model.scores([text]) for text in TEXTS])
    assert np.array_equal(alone, model.scores(TEXTS)), "bit-equal in any batch"
    vectors = opened(f"model:{GOLDEN}/onnx/model.onnx", vectors=True).vectors(TEXTS)
    assert np.abs(vectors - np.array(EXPECTED["onnx"]["vectors"])).max() < TOLERANCE


def test_a_network_whose_results_depend_on_the_batch_reads_one_text_at_a_time() -> None:
    """Dynamically quantized products have one scale for a batch: a score would depend on the texts beside it."""
    pytest.importorskip("onnxruntime")
    model = opened(f"model:{GOLDEN}/quantized")
    assert np.abs(model.scores(TEXTS) - np.array(EXPECTED["quantized"]["scores"])).max() < TOLERANCE
    assert (model.counts.alone, model.counts.padding) == (len(TEXTS), 0)
    embedder = opened(f"model:{GOLDEN}/quantized", vectors=True)
    vectors = embedder.vectors(TEXTS)
    assert np.array_equal(vectors, np.concatenate([embedder.vectors([text]) for text in TEXTS]))
    # A processor with another instruction for products of bytes rounds a value to the next of 255 steps.
    assert np.abs(vectors - np.array(EXPECTED["quantized"]["vectors"])).max() < 5e-3
    model.alone, model.cap = False, CPU_TOKENS
    assert np.abs(model.scores(TEXTS) - np.array(EXPECTED["quantized"]["scores"])).max() > 100 * TOLERANCE
    assert "one document at a time" in of_model(asdict(opened(f"model:{GOLDEN}/quantized").counts) | {"alone": 1})


def test_without_onnxruntime_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"feedmill\[models\]"):
        opened(f"model:{GOLDEN}/onnx")


class Counting:
    """A runner whose scores are the lengths of the texts; one GPU that has room for few tokens."""

    on_gpu, labels, activation = True, 1, "identity"

    def __init__(self, room: int) -> None:
        self.room, self.shapes = room, list[tuple[int, ...]]()

    def run(self, ids: Any, mask: Any) -> Any:
        if ids.size > self.room:
            raise RuntimeError("CUDA out of memory")
        self.shapes.append(ids.shape)
        return mask.sum(axis=1, keepdims=True).astype(np.float32)


def network(runner: Any, **settings: Any) -> Network:
    """A network with another runner, without the package of the real one."""
    model = find_model(str(GOLDEN / "onnx"))
    made = Network.__new__(Network)
    wanted = Settings(**settings)
    made.counts, made.path, made.pad, made.labels, made.normalize = Counts(), "m", 0, ("score",), False
    made.tokens = Tokens(model, wanted.tokens or 24, wanted, special=True)
    made.runner, made.cap = runner, 1 << 16
    return made


def test_a_batch_too_large_for_the_memory_of_a_gpu_is_halved() -> None:
    texts = ["cat " * (k % 20) for k in range(300)]
    wanted = network(Counting(1 << 20)).scores(texts)
    small = Counting(200)
    found = network(small)
    assert np.array_equal(found.scores(texts), wanted) and found.cap <= 200
    assert found.counts.tokens == int(wanted.sum()) and found.counts.padding < found.counts.tokens / 4
    with pytest.raises(ConfigError, match="out of memory"):
        network(Counting(1)).scores(["cat"])


@pytest.mark.parametrize("cut", ["BertPreTokenizer", "Whitespace", "WhitespaceSplit"])
@pytest.mark.parametrize("form", [["BertNormalizer"], ["NFKC", "Lowercase"], []])
def test_words_are_encoded_as_in_their_texts(cut: str, form: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import tokenizers

    made = tokenizers.Tokenizer.from_file(str(GOLDEN / "onnx/tokenizer.json"))
    made.add_special_tokens(["[CLS]", "[x]"])
    if form:
        made.normalizer = tokenizers.normalizers.Sequence([getattr(tokenizers.normalizers, one)() for one in form])
    made.pre_tokenizer = getattr(tokenizers.pre_tokenizers, cut)()
    parts = [
        *" \n\t\r\x0b\x0c\x00\x1c\x85\xa0\u2028\u3000\u200b\u0301\u0338=<.'#_éΣςİ中日🎉",
        "[CLS]",
        "[x]",
        "##s",
        "cats",
        " the ",
    ]
    rng = np.random.default_rng(3)
    texts = ["".join(rng.choice(parts, rng.integers(0, 30))) for _ in range(600)]
    words = Words.of(made)
    assert words is not None and Words.of(tokenizers.Tokenizer(tokenizers.models.BPE())) is None
    for _ in range(2):
        ids, sizes = words.encode(texts)
        wanted = [one.ids for one in made.encode_batch(texts, add_special_tokens=False)]
        assert [one.tolist() for one in np.split(ids, np.cumsum(sizes)[:-1])] == wanted
        monkeypatch.setattr(of_texts, "_HELD", 0)  # all are forgotten, and encoded again


@pytest.mark.parametrize("long", ["first", "windows"])
def test_windows_are_those_of_the_package(long: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["cat " * k for k in range(40)]
    tokens = Tokens(model := find_model(str(GOLDEN / "onnx")), 9, Settings(long=long), special=True)
    tokens.tokenizer.enable_truncation(9)
    wanted = [
        part.ids for one in tokens.tokenizer.encode_batch(texts) for part in [one, *one.overflowing * (long != "first")]
    ]
    tokens.tokenizer.no_truncation()
    for words in (tokens.words, None):
        monkeypatch.setattr(tokens, "words", words)
        ids, sizes, _ = tokens.windows(texts, counts := Counts())
        assert [one.tolist() for one in np.split(ids, np.cumsum(sizes)[:-1])] == wanted
        assert counts.cut == (32 if long == "first" else 0)
    with pytest.raises(ConfigError, match="room for special tokens only"):
        Tokens(model, 2, Settings(), special=True)


def test_long_texts_are_read_to_the_first_window_or_in_all() -> None:
    long = "cat dog " * 40
    first, every = network(Counting(1 << 20), tokens=10), network(Counting(1 << 20), tokens=10, long="windows")
    assert first.scores([long, "cat"]).tolist() == [[10], [3]] and first.counts.cut == 1
    assert every.scores([long, "cat"]).tolist() == [[10], [3]] and every.counts.cut == 0  # a mean of windows of 10
    assert every.counts.tokens == 10 * 10 + 3
    values = averaged(np.array([[1.0], [4.0], [7.0]]), np.array([0, 0, 2]), np.array([3.0, 1.0, 2.0]), 4, np.nan)
    assert values[0] == 1.75 and values[2] == 7 and np.isnan(values[[1, 3]]).all()


def test_batches_are_padded_little_and_hold_at_least_one_window() -> None:
    sizes = np.sort(np.random.default_rng(1).integers(1, 900, 500))
    cuts = list(batches(sizes, CPU_TOKENS))
    assert [low for low, _ in cuts] == [0, *(high for _, high in cuts[:-1])] and cuts[-1][1] == 500
    assert all((high - low) * sizes[high - 1] <= CPU_TOKENS or high - low == 1 for low, high in cuts)
    assert list(batches(sizes[:0], 8)) == []


def test_scores_of_transformers_equal_its_own(tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    shutil.copy(GOLDEN / "onnx/tokenizer.json", tmp_path)
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=24, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=24, id2label={0: "low", 1: "high"}, label2id={"low": 0, "high": 1},
    )  # fmt: skip
    own = transformers.BertForSequenceClassification(config).eval()
    own.save_pretrained(tmp_path)
    model = opened(f"{tmp_path},device=cpu")
    found, tokenizer = model.scores(TEXTS), model.tokens.tokenizer
    tokenizer.enable_truncation(24)
    for text, scores in zip(TEXTS, found, strict=True):
        with torch.inference_mode():
            logits = own(torch.tensor([tokenizer.encode(text).ids])).logits[0].double()
        assert scores == pytest.approx(logits.softmax(-1).numpy(), abs=1e-5)
    assert opened(f"{tmp_path},device=cpu,dtype=bfloat16").scores(TEXTS) == pytest.approx(found, abs=2e-2)
    assert opened(f"{tmp_path},device=cpu", vectors=True).vectors(TEXTS).shape == (6, 16)
    told = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**told, "architectures": ["BertForMaskedLM"]}))
    with pytest.raises(ConfigError, match="not a sequence classifier"):
        opened(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({**told, "auto_map": {"AutoModel": "code.py"}}))
    with pytest.raises(ConfigError, match="never run"):
        opened(str(tmp_path))


def test_attributes_do_not_depend_on_workers_and_models_make_them_stale(tmp_path: Path) -> None:
    model = tmp_path / "quality"
    shutil.copytree(GOLDEN / "static", model)
    texts = [TEXTS[k % len(TEXTS)] + " cat" * (k % 7) for k in range(400)]
    for part in range(3):
        rows = [document(1000 * part + k, text * (part + 1)) for k, text in enumerate(texts)]
        write_documents(tmp_path / f"documents/{part}.jsonl", rows)
    taggers = [f"model:{model}", f"other=model:{model},tokens=4,long=windows", f"model:{FASTTEXT}"]
    taggers += [f"net=model:{GOLDEN}/onnx"] if find_spec("onnxruntime") else []

    def run(name: str, workers: int, *given: str) -> Any:
        return tag([f"{tmp_path}/documents"], given or taggers, name=name, workers=workers, progress=False)

    one, two = run("x", 1), run("y", 3)
    assert one.models == two.models and {"quality", "other"} <= set(one.models)
    made = contents(tmp_path / "attributes/x")
    assert [*made.values()] == [v.replace(b'"y__', b'"x__') for v in contents(tmp_path / "attributes/y").values()]
    row = json.loads(next(iter(made.values())).splitlines()[0])["attributes"]
    assert {"x__quality__science", "x__quality__label_1st_person", "x__other__news", "x__tiny__prose"} <= set(row)
    assert run("x", 1).reused == 3
    changed = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**changed, "max_length": 8}))
    assert run("x", 1).reused == 0
    assert run("x", 1, *taggers[1:]).reused == 0 and run("x", 1, *taggers[1:]).reused == 3
    assert run("x", 1, f"other=model:{model},tokens=5", taggers[2]).reused == 0


def test_a_model_is_a_class_to_derive_from() -> None:
    class Best(built_in(f"model:{GOLDEN}/static,tokens=40")):  # type: ignore[misc]
        def tag_batch(self, documents: Any) -> list[DocResult]:
            found = super().tag_batch(documents)
            return [DocResult(one.doc, [max(one.spans, key=lambda span: span.score)]) for one in found]

    (span,) = Best().predict(Document("web", "7", TEXTS[0])).spans
    scores = opened(f"{GOLDEN}/static").scores(TEXTS[:1])[0]
    assert (span.start, span.end, span.score) == (0, len(TEXTS[0]), scores.max()) and span.type in ("science", "news")


def test_names_and_settings() -> None:
    assert Choice.parse(f"model:{GOLDEN}/static").name == "static"
    assert Choice.parse(f"model:{GOLDEN}/onnx/model.onnx").name == "models"  # as published: NAME/onnx/model.onnx
    assert Choice.parse(f"edu=model:{GOLDEN}/onnx,tokens=9,device=cpu").settings.tokens == 9  # type: ignore[union-attr]
    for text, wanted in (
        (f"c4_v2=model:{GOLDEN}/static", "name of another tagger"),
        (f"model:{GOLDEN}/static,window=3", "no setting 'window'"),
        (f"model:{GOLDEN}/static,tokens=0", "not a number of tokens"),
        (f"model:{GOLDEN}/static,long=last", "unknown"),
        ("model:https://example.org/m", "not downloaded"),
        (f"model:{GOLDEN.parent}", "no model is recognized"),
        (f"model:{GOLDEN}/expected.json", "no model is recognized"),
    ):
        with pytest.raises(ConfigError, match=wanted):
            Choice.parse(text)
    with pytest.raises(NotFound, match="not found"):
        Choice.parse("model:nowhere")
    with pytest.raises(FeedmillError, match="no settings"):
        Choice.parse(f"model:{FASTTEXT},tokens=3").create()
    assert len(attributes(["good day"], f"model:{FASTTEXT}")[0]) > 1


def test_labels() -> None:
    assert labels_of(None, 1, "m") == ("score",) and labels_of({"0": "LABEL_0"}, 1, "m") == ("score",)
    assert labels_of({0: "bad", 1: "good"}, 2, "m") == ("bad", "good")
    assert labels_of([1, 2], 2, "m") == ("label_1", "label_2")
    with pytest.raises(ConfigError, match="3 outputs"):
        labels_of(["a"], 3, "m")
    with pytest.raises(ConfigError, match="attribute name"):
        labels_of(["a b", "a-b"], 2, "m")


def test_weights_that_can_run_code_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path, tmp_path / "pytorch_model.bin"):
        with pytest.raises(ConfigError, match="can run code"):
            find_model(str(path))
    (tmp_path / "model.safetensors").write_bytes(b"odd")
    with pytest.raises(ConfigError, match="not a safetensors file"):
        find_model(str(tmp_path))
