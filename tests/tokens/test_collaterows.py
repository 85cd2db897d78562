"""``fm.tokens.collate_rows``: packed rows of text, media and documents as batches, and what its prediction misses."""

from __future__ import annotations

import json
import logging
import pickle
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError, MissingExtra
from feedmill.tokens.collaterows import RowCollator
from feedmill.tokens.encodesample import RopePositions
from helpers.durations import needs
from helpers.vision_models import picture, qwen3_config, qwen3_model, qwen3_processor, row_of, sample, talk

torch = pytest.importorskip("torch")
needs("transformers", "tokenizers", "jinja2", "PIL.Image")

A = sample("a", {"jpg": picture(100, 60), "json": talk(["what", None, "?"], "a cat")})
B = sample("b", {"json": talk("no image", "none", "again", "more")})
C = sample(
    "c",
    {
        "1.jpg": picture(64, 64, 1),
        "10.jpg": picture(90, 40, 3, 6),
        "2.jpg": picture(40, 200, 2),
        "json": talk([None, "and", None, "x", None], "three things"),
    },
)
D = {"input_ids": np.arange(40, dtype=np.int64), "loss_mask": np.arange(40) < 30}
SAMPLES = [A, B, C, D]
LENGTHS = [39, 63, 56, 40]


@pytest.fixture(scope="module")
def processor() -> Any:
    return qwen3_processor()


def collator(processor: Any, layout: Any = "transformers", **options: Any) -> RowCollator:
    return fm.tokens.collate_rows(processor, layout, config=qwen3_config(), **options)


@pytest.fixture(scope="module")
def usual(processor: Any) -> RowCollator:
    """A collator for several tests, as each starts a process for its template."""
    return collator(processor)


@pytest.fixture(scope="module")
def named(processor: Any) -> RowCollator:
    """A collator to which parts with pictures are named."""
    return collator(processor, media=["a.jpg", "b.jpg"])


@pytest.fixture(scope="module")
def batch(processor: Any) -> Any:
    return collator(processor)([row_of(SAMPLES, LENGTHS, 512, 16)])


def text_of(processor: Any, tokens: Any) -> str:
    return str(processor.tokenizer.decode([int(each) for each in tokens if each >= 0]))


@pytest.mark.parametrize("attention", ["sdpa", pytest.param("eager", marks=pytest.mark.slow)])
def test_the_loss_is_that_of_single_samples(processor: Any, batch: Any, attention: str) -> None:
    """Line 4 of the issue: a model of Qwen3-VL's class, and gradients too."""
    model, collate = qwen3_model(attention).train(), collator(processor)
    total, count, singles = torch.zeros(()), 0, []
    for one, length in zip(SAMPLES, LENGTHS, strict=True):
        alone = collate([row_of([one], [length], length)])
        made = model(**alone)
        targets = int((alone["labels"][0, 1:] != -100).sum())
        total, count = total + made.loss * targets, count + targets
        singles.append(made.logits[0])
    (total / count).backward()
    expected = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    model.zero_grad()
    packed = model(**batch)
    packed.loss.backward()
    assert int((batch["labels"][0, 1:] != -100).sum()) == count
    assert abs(packed.loss.item() - total.item() / count) < 1e-4
    for start, length, logits in zip([0, 48, 112, 176], LENGTHS, singles, strict=True):
        assert torch.allclose(packed.logits[0, start : start + length], logits, atol=1e-4)
    for name, value in model.named_parameters():
        if name in expected:
            assert torch.allclose(value.grad, expected[name], atol=1e-4), name


def test_a_sample_is_what_the_processor_makes(processor: Any, batch: Any) -> None:
    """Media are in the order of the numbers in their names, upright, and alone."""
    import io

    from PIL import Image, ImageOps

    for start, length, one, names in ((0, 39, A, ["jpg"]), (112, 56, C, ["1.jpg", "2.jpg", "10.jpg"])):
        text = processor.apply_chat_template(json.loads(one.raw("json"))["messages"])
        images = [ImageOps.exif_transpose(Image.open(io.BytesIO(one.raw(name)))).convert("RGB") for name in names]
        own = processor(text=[text], images=[images], return_tensors="pt")
        assert own["input_ids"][0].tolist() == batch["input_ids"][0, start : start + length].tolist()
        patches = slice(0, len(own["pixel_values"])) if one is A else slice(-len(own["pixel_values"]), None)
        assert torch.equal(own["pixel_values"], batch["pixel_values"][patches])
    assert batch["image_grid_thw"].shape == (4, 3)


def test_values_of_media_are_not_of_tokens(processor: Any) -> None:
    """A sample of three tokens and one image has a grid of the shape [1, 3], as its tokens have."""
    collate = collator(processor, text="txt")
    tiny = sample("t", {"jpg": picture(32, 32), "txt": b"<|image_pad|>ab"})
    made = collate([row_of([tiny, tiny], [3, 3], 8)])
    assert made["image_grid_thw"].tolist() == [[1, 2, 2]] * 2 and made["mm_token_type_ids"].shape == (1, 8)


@pytest.mark.parametrize("name", ["Qwen2_5Omni", "Qwen3OmniMoe"])
def test_positions_of_omni_are_those_of_its_model(name: str) -> None:
    """Qwen3-Omni has fractions for frames: 1.5 a second are 16.67 positions from each other."""
    import transformers

    numbers = {"image_token_id": 90, "video_token_id": 91, "audio_token_id": 92, "vision_start_token_id": 93}
    config = getattr(transformers, f"{name}ThinkerConfig")(audio_start_token_id=95, **numbers)
    with torch.device("meta"):
        real = getattr(transformers, f"{name}ThinkerForConditionalGeneration")(config)
    positions = RopePositions.of(config)
    assert positions is not None
    sound = [95, *[92] * (87 if name == "Qwen2_5Omni" else 46), 96]  # of 350 frames
    for seconds in (1.0, 0.08, 2 / 3):
        ids = torch.tensor([[1, 93, *[90] * 6, 94, 2, 3, 93, *[91] * 24, 94, 4, *sound, 5, 6]])
        there = torch.ones_like(ids)
        made = {
            "input_ids": ids,
            "attention_mask": there,
            "image_grid_thw": torch.tensor([[1, 4, 6]]),
            "video_grid_thw": torch.tensor([[4, 4, 6]]),
            "video_second_per_grid": torch.tensor([seconds]),
            "feature_attention_mask": torch.ones(1, 350, dtype=torch.long),
        }
        grids, frames = [made[f"{kind}_grid_thw"] for kind in ("image", "video")], torch.tensor([350])
        expected, _ = real.get_rope_index(ids, *grids, there, False, frames, made["video_second_per_grid"])
        assert torch.equal(torch.from_numpy(positions(made)), expected[:, 0])
        heard = torch.tensor([[1, *sound, 5]])
        alone, _ = real.get_rope_index(heard, None, None, torch.ones_like(heard), False, frames, None)
        only = {"input_ids": heard, "attention_mask": torch.ones_like(heard)}
        only["feature_attention_mask"] = made["feature_attention_mask"]
        assert torch.equal(torch.from_numpy(positions(only)), alone[:, 0])
    assert (expected % 1 != 0).any() == (name == "Qwen3OmniMoe")


def test_positions_that_are_fractions_stay(processor: Any, batch: Any) -> None:
    collate = collator(processor)
    whole = collate.encoder.positions
    collate.encoder.positions = lambda made: (whole(made) + 0.25).astype(np.float32)
    made = collate([row_of(SAMPLES, LENGTHS, 512, 16)])["position_ids"]
    assert made.dtype == torch.float32 and torch.equal(made[0], batch["position_ids"][0].float())
    moved = torch.full((512,), 0.25)
    moved[176:] = 0  # a document of tokens, and padding
    assert torch.equal(made[1:, 0], batch["position_ids"][1:, 0] + moved)


def test_labels_are_answers_without_media_and_first_tokens(processor: Any, batch: Any) -> None:
    labels = batch["labels"][0]
    for start, stop, expected in (
        (0, 48, "a cat<|im_end|>"),
        (48, 112, "none<|im_end|>more<|im_end|>"),
        (112, 176, "three things<|im_end|>"),
    ):
        assert text_of(processor, labels[start:stop]) == expected
    assert labels[176:216].tolist() == [-100, *range(1, 30), *[-100] * 10]
    assert (labels[216:] == -100).all()
    everything = collator(processor, chat_mask="none")([row_of([A], [39], 39)])
    learned = everything["labels"][0] != -100
    media = everything["input_ids"][0] == processor.image_token_id
    assert learned.tolist() == [False, *(~media[1:]).tolist()]


def test_the_layout_of_transformers(batch: Any) -> None:
    assert "attention_mask" not in batch and batch["use_cache"] is False
    assert batch["cu_seq_lens_q"].tolist() == batch["cu_seq_lens_k"].tolist() == [0, 48, 112, 176, 224, 512]
    assert batch["cu_seq_lens_q"].dtype == batch["seq_idx"].dtype == torch.int32
    assert batch["max_length_q"] == batch["max_length_k"] == 288
    positions = batch["position_ids"]
    assert positions.shape == (4, 1, 512)
    assert positions[0, 0].tolist() == [*range(48), *range(64), *range(64), *range(48), *range(288)]
    assert (positions[1:, 0, 48:112] == positions[0, 0, 48:112]).all()  # text alone
    assert not (positions[1, 0, :39] == positions[0, 0, :39]).all()  # an image has fewer positions than tokens
    assert (positions[1:, 0, 39:48] - positions[1:, 0, :39].max()).tolist() == [[*range(1, 10)]] * 3  # padding
    assert batch["seq_idx"][0].tolist() == [0] * 48 + [1] * 64 + [2] * 64 + [3] * 48 + [4] * 288
    assert batch["input_ids"][0, 39:48].unique().tolist() == [256]


def test_the_layout_of_axolotl(processor: Any) -> None:
    made = collator(processor, "axolotl")([row_of(SAMPLES, LENGTHS, 512, 16)])
    mask = made["attention_mask"][0].tolist()
    assert mask == [1] * 39 + [0] * 9 + [2] * 63 + [0] + [3] * 56 + [0] * 8 + [4] * 40 + [0] * 296
    assert "cu_seq_lens_q" not in made and made["position_ids"].shape == (4, 1, 512)


def test_the_layout_of_megatron(processor: Any, batch: Any) -> None:
    """Targets are the next tokens; the end of the row belongs to the last sample. No configuration is needed."""
    made = fm.tokens.collate_rows(processor, "megatron")([row_of(SAMPLES, LENGTHS, 512, 16)])
    assert made["cu_seqlens_q"].tolist() == made["cu_seqlens_kv"].tolist() == [0, 39, 102, 158, 198]
    assert made["cu_seqlens_q_padded"].tolist() == made["cu_seqlens_kv_padded"].tolist() == [0, 48, 112, 176, 512]
    assert (
        made["max_seqlen_q"].shape == ()
        and made["max_seqlen_q"].item() == made["max_seqlen_kv"].item() == 336
        and made["total_tokens"] == 512
    )
    assert made["position_ids"][0].tolist() == [*range(48), *range(64), *range(64), *range(336)]
    labels = batch["labels"][0]
    assert made["labels"][0].tolist() == [*labels[1:].tolist(), -100]
    assert made["loss_mask"].dtype == torch.float32 and (made["loss_mask"] == (made["labels"] != -100)).all()
    assert made["attention_mask"] is None and int((~made["padding_mask"]).sum()) == sum(LENGTHS)
    media = made["visual_inputs"].normalized_for_model()
    assert sorted(media) == ["image_grid_thw", "pixel_values"] and made["visual_inputs"].pixel_values is not None
    full = fm.tokens.collate_rows(processor, "megatron")([row_of([A, B], LENGTHS[:2], sum(LENGTHS[:2]))])
    assert "cu_seqlens_q_padded" not in full and full["cu_seqlens_q"].tolist() == [0, 39, 102]


def test_the_layout_of_torchtitan(processor: Any, batch: Any) -> None:
    inputs, labels = collator(processor, "torchtitan")([row_of(SAMPLES, LENGTHS, 512, 16)])
    assert inputs["input"].shape == inputs["positions"].shape == labels.shape == (512,)
    assert inputs["mrope_positions"].tolist() == batch["position_ids"][1:, 0].T.tolist()
    assert torch.equal(inputs["pixel_values"], batch["pixel_values"]) and inputs["grid_thw"].shape == (4, 3)
    assert inputs["pixel_values_videos"] is None and inputs["grid_thw_videos"] is None
    assert inputs["special_tokens"] == {
        "image_id": 259, "video_id": 260, "vision_start_id": 261, "vision_end_id": 262, "pad_id": 256,
    }  # fmt: skip
    assert labels.tolist() == [*batch["labels"][0, 1:].tolist(), -100]


def test_several_rows_become_one(processor: Any, batch: Any) -> None:
    made = collator(processor)([row_of([B], [63], 64), row_of([A, C], [39, 56], 100)])
    assert made["cu_seq_lens_q"].tolist() == [0, 63, 64, 103, 159, 164]
    assert made["input_ids"][0, 64:103].tolist() == batch["input_ids"][0, :39].tolist()
    assert torch.equal(made["pixel_values"], batch["pixel_values"])


def test_another_length_than_predicted(processor: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Shorter is padded; longer is taken while the row has room, and dropped or an error otherwise."""
    collate = collator(processor)
    with caplog.at_level(logging.WARNING, "feedmill"):
        made = collate([row_of([A, B, C, D], [45, 60, 30, 40], 180, mismatch="drop")])
    # 5 tokens are free: B takes 3 of them, C needs 26 and is dropped, D follows where it was.
    assert made["cu_seq_lens_q"].tolist() == [0, 45, 108, 138, 178, 180]
    assert made["input_ids"][0, 108:138].unique().tolist() == [256] and (made["labels"][0, 108:138] == -100).all()
    assert made["input_ids"][0, 138:178].tolist() == list(range(40))
    assert made["image_grid_thw"].shape == (1, 3)  # those of A alone
    found = collate.misses
    assert (found.samples, found.shorter, found.longer, found.dropped, found.total) == (4, 1, 1, 1, 3)
    assert [record.message for record in caplog.records] == [
        "data: a: 39 tokens, predicted 45: its place is padded. Further samples that differ are counted only;"
        " 'feedmill tokens lengths --check-samples' finds them."
    ]
    strict = collator(processor)
    with pytest.raises(DataError) as caught:
        strict([row_of([A, B, C, D], [45, 60, 30, 40], 180)])
    assert str(caught.value) == (
        "data 'c': the sample has 56 tokens with ImagesOnly, and its rule predicted 30: its row of 180 has room for 2"
        " more. Compare the rule with 'feedmill tokens lengths --check-samples 1000', and use the same processor,"
        " template and options for both; or plan with 'mismatch: drop' or more 'headroom'."
    )
    assert strict.misses.samples == 0


def test_places_stay_multiples(processor: Any) -> None:
    """A longer sample moves those after it by whole multiples, and needs as much room."""
    collate = collator(processor)
    made = collate([row_of([B, D], [40, 40], 128, 16, mismatch="drop")])
    assert made["cu_seq_lens_q"].tolist() == [0, 64, 112, 128] and collate.misses.longer == 1
    made = collate([row_of([B, D], [40, 40], 111, 16, mismatch="drop")])
    assert made["cu_seq_lens_q"].tolist() == [0, 48, 96, 111] and collate.misses.dropped == 1


def test_rows_of_padding_alone(processor: Any) -> None:
    """Models get a row even if all of its samples are dropped."""
    for layout in ("transformers", "axolotl", "megatron", "torchtitan"):
        made = collator(processor, layout)([row_of([C], [10], 32, mismatch="drop")])
        if layout == "megatron":
            assert made["cu_seqlens_q"].tolist() == [0, 10] and made["cu_seqlens_q_padded"].tolist() == [0, 32]
            assert made["loss_mask"].sum() == 0 and made["visual_inputs"].as_model_kwargs() == {}
        elif layout == "transformers":
            assert made["cu_seq_lens_q"].tolist() == [0, 10, 32] and "pixel_values" not in made


BAD: list[tuple[Mapping[str, bytes], str]] = [
    ({"json": talk(["where", None], "here")}, "the processor refuses it (ValueError: Found 1 <|image_pad|> tokens"),
    (
        {"jpg": picture(64, 64), "json": talk([None, "<|image_pad|> in the text"], "x")},
        "the processor refuses it (ValueError: ",
    ),
    (
        {"json": talk("the <|image_pad|> itself", "x")},
        "the processor refuses it (ValueError: Found 1 <|image_pad|> tok",
    ),
    (
        {"jpg": picture(64, 64), "json": talk("forgot it", "x")},
        "Found total 0 <|image_pad|> tokens and 1 images",
    ),
    ({"jpg": b"\xff\xd8\xff broken", "json": talk([None], "x")}, "an image does not decode"),
    ({"jpg": picture(3000, 10), "json": talk([None], "x")}, "the processor refuses it (ValueError: absolute aspect"),
    (
        {"1.jpg": picture(64, 64), "2.jpg": picture(64, 64), "json": talk(["<|image_pad|><|image_pad|>"], "x")},
        "Qwen3VLModel.get_rope_index finds no positions",
    ),
    ({"txt": b"no conversation"}, "the sample has no part 'json'"),
    ({"json": b'{"messages": 5}'}, "it is not a conversation"),
    ({"json": b"\xff"}, "it is not valid UTF-8"),
    ({"json": json.dumps({"chosen": "a", "rejected": "b"}).encode()}, "a pair of preferences has two texts"),
]


@pytest.mark.parametrize(("parts", "what"), BAD)
def test_samples_that_cannot_be_encoded(usual: RowCollator, parts: Mapping[str, bytes], what: str) -> None:
    """An error with the sample; with drop, its place is padding, and is counted."""
    row = row_of([B, sample("bad", parts), D], [63, 20, 40], 140)
    with pytest.raises(DataError) as caught:
        usual([row])
    assert what in str(caught.value) and str(caught.value).startswith("data 'bad': ")
    before = usual.misses.refused
    usual.row_counts()  # of the tests before
    made = usual([replace(row, mismatch="drop")])
    assert usual.misses.refused == before + 1 and made["cu_seq_lens_q"].tolist() == [0, 63, 83, 123, 140]
    assert usual.row_counts() == {"row_samples": 3, "length_misses": 0, "row_drops": 1}
    assert usual.row_counts() == {"row_samples": 0, "length_misses": 0, "row_drops": 0}


def test_plain_text_and_other_samples(processor: Any) -> None:
    """A part of plain text is learned as a whole; fields may be decoded already."""
    collate = collator(processor, text="txt", media=["left.jpg", "jpg"])
    text = "see <|image_pad|>,<|image_pad|>"
    encoded = sample("t", {"jpg": picture(64, 64), "left.jpg": picture(40, 90), "txt": text.encode()})
    (found,) = collate.encoder([encoded])
    assert not isinstance(found, DataError) and found.learned.sum() == 5
    from PIL import Image

    decoded = {"left.jpg": np.zeros((90, 40, 3), np.uint8), "jpg": [Image.new("RGB", (64, 64))], "txt": text}
    (other,) = collate.encoder([decoded])
    assert not isinstance(other, DataError) and other.ids.tolist() == found.ids.tolist()
    assert found.media["image_grid_thw"].tolist() == other.media["image_grid_thw"].tolist() == [[1, 6, 2], [1, 4, 4]]


def _picture(name: Any, key: str = "image") -> dict[str, Any]:
    return {"type": "image", key: name}


@pytest.mark.parametrize(
    ("turns", "more", "first"),
    [
        ([_picture("b.jpg"), _picture("a.jpg")], {}, "b"),
        ([_picture("photos/s.b.jpg", key="path"), _picture("photos/s.a.jpg", key="url")], {}, "b"),
        (
            [
                _picture({"url": "b.jpg"}, key="image_url"),
                _picture({"url": "a.jpg"}, key="image_url"),
            ],
            {},
            "b",
        ),
        ([{"type": "image"}, {"type": "image"}], {"images": ["b.jpg", "a.jpg"]}, "b"),
        ([{"type": "image"}, {"type": "image"}], {"images": [{"path": "b.jpg"}, {"path": "a.jpg"}]}, "b"),
        ([_picture("a.jpg"), _picture("b.jpg")], {}, "a"),
        ([_picture("b.jpg"), _picture("other.jpg")], {}, "a"),
        ([_picture("other.jpg"), _picture("another.jpg")], {}, "a"),
        ([{"type": "image"}, {"type": "image"}], {}, "a"),
    ],
)
def test_a_conversation_that_names_its_pictures_gets_them_there(
    usual: RowCollator, named: RowCollator, turns: list[Any], more: dict[str, Any], first: str
) -> None:
    row = {"messages": [{"role": "user", "content": turns}, {"role": "assistant", "content": "yes"}], **more}
    pictures = {"a.jpg": picture(64, 64, 1), "b.jpg": picture(32, 32, 2)}
    for collate in (usual, named):
        (made,) = collate.encoder([sample("s", {**pictures, "json": json.dumps(row).encode()})])
        assert made.media["image_grid_thw"][0].tolist() == ([1, 4, 4] if first == "a" else [1, 2, 2])


def test_conversations_that_teach_nothing_are_named_once(processor: Any, caplog: pytest.LogCaptureFixture) -> None:
    rows = [sample(key, {"json": talk("only a question")}) for key in "xy"]
    with caplog.at_level(logging.WARNING, "feedmill"):
        made = collator(processor).encoder([A, *rows])
    assert not any(each.learned.any() for each in made[1:])
    assert [record.message for record in caplog.records] == [
        "sample x: nothing to learn: no token contributes to the loss: check the roles and weights of its messages, and"
        " chat_mask. Further ones are not named."
    ]


def test_other_forms_of_conversations(processor: Any) -> None:
    """Rows may mix them; an assistant may be last or not, and messages may be the part itself."""
    listed = json.dumps(json.loads(talk("hi", "yes"))["messages"]).encode()
    shared = json.dumps({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]}).encode()
    pair = json.dumps({"prompt": "hi", "completion": "yes"}).encode()
    collate = collator(processor)
    found = collate.encoder([sample("s", {"json": each}) for each in (listed, shared, pair, talk("hi", "yes"))])
    ids = [one.ids.tolist() for one in found if not isinstance(one, DataError)]
    assert len(ids) == 4 and all(each == ids[0] for each in ids)


def test_it_can_be_pickled(processor: Any, batch: Any) -> None:
    """Worker processes get it, with a processor of their own; counts begin again."""
    collate = collator(processor)
    row = row_of(SAMPLES, LENGTHS, 512, 16)
    collate([row])
    collate.encoder.real.processor = None  # a class of this test is not found by its name
    copy = pickle.loads(pickle.dumps(collate))
    assert copy.misses.samples == 0
    copy.encoder.real.processor = processor
    assert torch.equal(copy([row])["labels"], batch["labels"])


def test_what_is_missing_or_unknown(processor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match="unknown layout 'nemo': expected transformers, megatron, torchtitan, axolotl or dpo"
    ):
        fm.tokens.collate_rows(processor, "nemo")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"models of ImagesOnly have positions of M-RoPE.*Pass config="):
        fm.tokens.collate_rows(processor)
    with pytest.raises(ConfigError, match="media is the text 'jpg'"):
        fm.tokens.collate_rows(processor, media="jpg")
    with pytest.raises(ConfigError, match="chat_template is for conversations"):
        fm.tokens.collate_rows(processor, text="txt", chat_template="x.jinja")
    with pytest.raises(ConfigError, match="transformers cannot load the configuration of the model"):
        fm.tokens.collate_rows(processor, config=tmp_path)
    with pytest.raises(ConfigError, match="transformers cannot load the processor"):
        fm.tokens.collate_rows(tmp_path)
    with pytest.raises(ConfigError, match="unknown chat mask 'all'"):
        fm.tokens.collate_rows(processor, config=qwen3_config(), chat_mask="all")
    with pytest.raises(ConfigError, match="collate_rows collates rows of samples: found dict"):
        collator(processor)([{"input_ids": [1]}])  # type: ignore[list-item]
    for name in ("torch", "transformers"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(MissingExtra, match="need"):
                fm.tokens.collate_rows(processor)
