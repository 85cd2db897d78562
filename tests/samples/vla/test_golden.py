"""Text and captions as VLA Foundry's own pipelines gave them; and tensors as its documentation has them."""

from __future__ import annotations

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from feedmill.formats.pth import dump
from feedmill.samples.vla.modalities import modality
from feedmill.samples.vla.text import Captions, RawText, TokenizedText, resized
from helpers.vla_golden import ROOT, expected, facts


def cooked(view, folder: str):
    good, bad = [], []
    for sample in fm.open(ROOT / folder).read_raw(range(len(fm.open(ROOT / folder)))):
        try:
            good.append(view.cook(sample))
        except DataError as error:
            bad.append(error)
    return good, bad


@pytest.mark.parametrize("folder", ["text", "text_b"])
def test_tokenized_text_makes_the_same_batches(folder: str) -> None:
    view = TokenizedText(64)
    samples, bad = cooked(view, folder)
    wanted = expected(folder)["vla_pipeline"]["batches"]
    assert [error.kind for error in bad] == ["too-short"]
    for number, batch in enumerate(wanted):
        mine = view.batch(samples[4 * number : 4 * number + 4])
        assert mine["__key__"] == batch["keys"] and mine["attention_mask"] is None
        assert facts(mine["input_ids"]) == batch["input_ids"]


def test_longer_text_is_cut_at_a_random_place_and_shorter_padded() -> None:
    sample = fm.open(ROOT / "text").read_raw([0])[0]
    whole = TokenizedText().cook(sample)["input_ids"]
    starts = set()
    for seed in range(40):
        cut = TokenizedText(60).cook(sample, np.random.default_rng(seed))["input_ids"]
        (start,) = [i for i in range(len(whole) - 60) if (whole[i : i + 61] == cut).all()]
        starts.add(start)
    assert starts == {0, 1, 2, 3, 4}
    batch = TokenizedText().batch(
        [{"input_ids": np.arange(3), "labels": np.arange(3)}, {"input_ids": np.arange(2), "labels": np.arange(2)}]
    )
    assert batch["input_ids"].tolist() == [[0, 1, 2], [0, 1, 0]] and batch["labels"][1].tolist() == [0, 1, -100]


def test_captions_make_the_same_batches() -> None:
    view = Captions(16)
    samples, bad = cooked(view, "image_caption")
    assert [(error.kind, error.record) for error in bad] == [("missing-field", "000010007")]
    for number, batch in enumerate(expected("image_caption")["vla_pipeline"]["batches"]):
        mine = view.batch(samples[3 * number : 3 * number + 3])
        assert mine["__key__"] == batch["keys"] and list(mine["pixel_values"].shape) == batch["pixel_shape"]
        assert abs(float(mine["pixel_values"].mean()) - batch["pixel_mean"]) < 1.5
    assert samples[0]["text"] == "golden caption 0 — a pattern"


def test_resizing_is_bilinear() -> None:
    torch = pytest.importorskip("torch")
    image = np.random.default_rng(0).integers(0, 256, (13, 29, 3), np.uint8)
    wanted = torch.nn.functional.interpolate(
        torch.from_numpy(image).permute(2, 0, 1)[None].float(), size=(16, 8), mode="bilinear", align_corners=False
    )[0].numpy()
    assert np.abs(resized(image, 16, 8) - wanted).max() < 1e-3


def test_untokenized_text_is_the_text_or_the_whole() -> None:
    samples, _ = cooked(RawText(), "text_untokenized")
    assert samples[0]["text"].startswith("golden text 0: w516") and samples[2]["text"].startswith("golden text 2: w6")
    assert samples[4]["text"].startswith('{"content": "golden text 4')
    view = RawText(lambda texts: [np.arange(1, len(text.split()) + 1) for text in texts], seq_len=20, pad=7)
    batch = view.batch(samples[:4])
    assert batch["input_ids"].shape == (4, 21) and batch["attention_mask"].sum(1).max() <= 21
    assert (batch["input_ids"][~batch["attention_mask"]] == 7).all()
    with pytest.raises(ConfigError, match="requires a sequence length"):
        RawText(lambda texts: []).batch(samples[:1])


@pytest.mark.parametrize(
    "folder, name", [("text_doc", "text"), ("image_caption_doc", "image_caption"), ("robotics_doc", "robotics")]
)
def test_fields_of_tensors_are_taken_as_they_are(folder: str, name: str) -> None:
    view = modality(name, {"normalization": {"enabled": False}} if name == "robotics" else None, [])
    samples, bad = cooked(view, folder)
    assert not bad
    rows = [one for rows in expected(folder)["shards"].values() for one in rows]
    for mine, one in zip(samples, rows, strict=True):
        for part, field in one["fields"].items():
            assert facts(mine[part.removesuffix(".pth")]) == field["decoded"]
    batch = view.batch(samples[:2])
    assert len(batch["__key__"]) == 2 and batch["input_ids"].shape[0] == 2


def test_what_a_modality_needs_is_named(tmp_path) -> None:
    import io
    import tarfile

    def sample(**parts: bytes):
        with tarfile.open(tmp_path / "x.tar", "w") as tar:
            for name, data in parts.items():
                info = tarfile.TarInfo(f"k.{name.replace('__', '.')}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return fm.open(tmp_path / "x.tar").read_raw([0])[0]

    for view, parts, word in [
        (TokenizedText(8), {"txt": b""}, r"no json\.gz or input_ids\.pth \(it has: txt\)"),
        (TokenizedText(8), {"json__gz": b"x"}, "not a list of token ids"),
        (TokenizedText(8), {"x__pth": dump(1)}, r"no input_ids\.pth"),
        (TokenizedText(8), {"input_ids__pth": b"x"}, r"input_ids\.pth.*holds text, not what its name says"),
        (Captions(), {"txt": b""}, "no image"),
        (Captions(), {"jpg": b"", "txt": b""}, "is empty"),
        (Captions(), {"x__pth": dump(1)}, r"no pixel_values\.pth"),
        (RawText(), {"txt": b""}, "no json"),
        (RawText(), {"json": b"\xff"}, "not valid UTF-8"),
    ]:
        with pytest.raises(DataError, match=word) as info:
            view.cook(sample(**parts))
        assert str(info.value).startswith(f"{tmp_path}/x.tar 'k")
    with pytest.raises(ConfigError, match=r"unknown modality 'image_captions' \(did you mean 'image_caption'\?\)"):
        modality("image_captions")
