"""Token rules against frozen tables of what the processors of transformers made; `tools/token_rules.py` makes these."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.formats.mediatable import MediaTable
from feedmill.formats.mediatable import table_of as media_table
from feedmill.samples.token_rules.processor import RULES, ProcessorRules, read_rules
from feedmill.samples.token_rules.qwen import stamps
from feedmill.samples.token_rules.rule import UNKNOWN, Sizes

TABLES = sorted((Path(__file__).parents[1] / "golden/token_rules").glob("*.json"))
COLUMNS = {
    "image": ("height", "width"),
    "video": ("frames", "fps", "height", "width"),
    "audio": ("samples",),
}
TOGETHER = (
    "llava_onevision",
    "minicpmv4_6",
    "minicpmv4_6_video",
    "molmo2_video",
    "internvl_video",
    "internvl_video_fps",
)
"""Tables of processors for which the other media of a sample matter."""
MARKS = re.compile(r"<[^<>\s]+>|\[IMG(?:_BREAK|_END)?\]")


def bytes_of(text: str) -> int:
    """As the tables were made: special tokens are one each, and other text its bytes."""
    return len(MARKS.findall(text)) + len(MARKS.sub("", text).encode())


def folder_of(files: dict[str, Any], folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return str(folder)


def table_of(name: str, folder: Path) -> tuple[ProcessorRules, str, Sizes, np.ndarray]:
    table = json.loads((TABLES[0].parent / f"{name}.json").read_text())
    kind = table["kind"]
    rows = np.asarray(table["rows"], np.float64)
    sizes = Sizes.of(**dict(zip(COLUMNS[kind], rows.T, strict=False)))
    return read_rules(folder_of(table["files"], folder), table["options"]), kind, sizes, rows[:, -1].astype(np.int64)


def images(sizes: list[tuple[int, int]]) -> MediaTable:
    """A table of samples of one image each, (height, width)."""
    numbers = np.full((len(sizes), 7), np.nan)
    numbers[:, [1, 0]] = sizes
    return media_table(np.arange(len(sizes)), ["jpg"] * len(sizes), np.zeros(len(sizes), np.uint8), numbers, len(sizes))


def test_every_family_has_a_table() -> None:
    classes = {json.loads(path.read_text())["files"]["processor_config.json"]["processor_class"] for path in TABLES}
    assert classes == set(RULES)


@pytest.mark.parametrize("name", [path.stem for path in TABLES])
def test_counts_are_those_of_the_processor(name: str, tmp_path: Path) -> None:
    made, kind, sizes, real = table_of(name, tmp_path)
    counted = made.rules[kind].tokens(sizes, np.arange(len(sizes) + 1), bytes_of)
    assert counted.tokens.dtype == np.int32
    np.testing.assert_array_equal(counted.tokens, real)
    refused = np.concatenate([*counted.refused.values(), np.empty(0, np.int64)])
    assert sorted(refused.tolist()) == np.flatnonzero(real == UNKNOWN).tolist()


@pytest.mark.parametrize("name", [path.stem for path in TABLES])
def test_a_sample_has_the_tokens_of_its_media(name: str, tmp_path: Path) -> None:
    """A processor counts media one by one, but for those of `TOGETHER`: see below."""
    if name in TOGETHER:
        return
    made, kind, sizes, real = table_of(name, tmp_path)
    offsets = np.array([0, 0, 3, 50, 50, len(real)])
    counted = made.rules[kind].tokens(sizes, offsets, bytes_of)
    for number, (start, stop) in enumerate(itertools.pairwise(offsets)):
        part = real[start:stop]
        assert counted.tokens[number] == (UNKNOWN if (part == UNKNOWN).any() else part.sum())


def test_several_images_in_a_sample_of_onevision(tmp_path: Path) -> None:
    """Its processor gives each of several images 730 tokens, whatever their sizes, and one image up to 7,290."""
    made, _, sizes, real = table_of("llava_onevision", tmp_path)
    counted = made.rules["image"].tokens(sizes, np.array([0, 1, 3, 3, len(sizes)]))
    assert counted.tokens.tolist() == [real[0], 2 * 730, 0, (len(sizes) - 3) * 730]


def test_minicpm_numbers_the_media_of_a_sample(tmp_path: Path) -> None:
    """The number stands in the text, so that the eleventh has a letter more. 4.7 does not number videos."""
    made, _, _, real = table_of("minicpmv4_6", tmp_path / "a")
    sizes = Sizes.of(height=[448] * 12, width=[448] * 12)
    one, all_ = (made.rules["image"].tokens(sizes, np.array(each), bytes_of).tokens for each in (range(13), [0, 12]))
    assert all_.tolist() == [one.sum() + 2] and (one == 64 + 2 + 3).all() and len(real) == 150
    newer, _, sizes, _ = table_of("minicpmv4_7_video", tmp_path / "b")
    assert newer.rules["video"].texts == ("<image><|video_pad|></image>",)


def test_molmo_takes_one_video_in_a_sample(tmp_path: Path) -> None:
    made, _, _, _ = table_of("molmo2_video", tmp_path)
    sizes = Sizes.of(height=[300] * 3, width=[300] * 3, frames=[60] * 3, fps=[30] * 3)
    counted = made.rules["video"].tokens(sizes, np.array([0, 1, 3]), bytes_of)
    assert counted.tokens.tolist() == [4 * 83 + len("0.0  0.5  1.0  1.5 "), UNKNOWN]
    assert {reason: numbers.tolist() for reason, numbers in counted.refused.items()} == {
        "its sample has more than one video": [1, 2]
    }


def test_internvl_stacks_the_videos_of_a_sample(tmp_path: Path) -> None:
    made, _, _, _ = table_of("internvl_video_fps", tmp_path)
    sizes = Sizes.of(height=[300] * 4, width=[300] * 4, frames=[60, 60, 60, 100], fps=[30] * 4)
    counted = made.rules["video"].tokens(sizes, np.array([0, 2, 4]), bytes_of)
    assert counted.tokens.tolist() == [2 * (4 * (258 + len("Frame1: ")) + 3), UNKNOWN]
    assert list(counted.refused) == ["another video of its sample has another number of frames"]


def test_some_processors_add_a_bos(tmp_path: Path) -> None:
    made, _, _, _ = table_of("mllama", tmp_path / "a")
    assert made.prepared("<|image|><|image|>x", {"bos_token": "<s>"}) == "<|image|><|image|><s>x"
    assert made.prepared("<|image|><s>x", {"bos_token": "<s>"}) == "<|image|><s>x"
    with pytest.raises(fm.ConfigError, match="the tokenizer has no BOS, with which MllamaProcessor begins each text"):
        made.prepared("x", {"eos_token": "</s>"})
    made, _, _, _ = table_of("molmo2", tmp_path / "b")
    assert made.prepared("x", {"eos_token": "</s>"}) == "</s>x" == made.prepared("</s>x", {"eos_token": "</s>"})
    made, _, _, _ = table_of("llava", tmp_path / "c")
    assert made.prepared("x", {"bos_token": "<s>"}) == "x"


def test_rules_are_for_classes(tmp_path: Path) -> None:
    """Of images, videos and sound; a folder with another class for one of them has rules for the others."""
    given = files("qwen3_vl_video")
    given["preprocessor_config.json"] = {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16}
    made = read_rules(folder_of(given, tmp_path))
    assert set(made.rules) == {"image", "video"} and not made.missing
    given["preprocessor_config.json"]["image_processor_type"] = "SiglipImageProcessor"
    made = read_rules(folder_of(given, tmp_path))
    why = "Qwen3VLProcessor has no rule for image with SiglipImageProcessor: rules are for Qwen2VLImageProcessor"
    assert set(made.rules) == {"video"} and made.missing == {"image": why}
    other = files("llava")
    other["preprocessor_config.json"]["image_processor_type"] = "BlipImageProcessor"
    with pytest.raises(fm.ConfigError, match="LlavaProcessor has no rule for image with BlipImageProcessor"):
        read_rules(folder_of(other, tmp_path / "other"))
    # Without a file of its own, the class of videos has the name of that of images.
    made = read_rules(folder_of(files("qwen3_vl"), tmp_path / "images"))
    assert made.missing["video"].startswith("Qwen3VLProcessor has no rule for video with Qwen2VLVideoProcessor")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("qwen2_vl_video", {"num_frames": 4}, "fps must be given without num_frames"),
        ("qwen3_vl_video", {"num_frames": 4}, "num_frames must be null"),
        ("gemma4_video", {"fps": 4}, "fps must be null, as num_frames is 32"),
        ("glm4v_video", {"do_sample_frames": False}, "the rule is for frames that are sampled"),
        ("internvl_video", {"num_frames": None}, "num_frames must be given"),
        ("minicpmv4_6_video", {"stack_frames": 2}, "stack_frames is 2"),
    ],
)
def test_options_that_the_processor_refuses_for_each_video(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    given = files(name)
    given["video_preprocessor_config.json"] |= change
    with pytest.raises(fm.ConfigError, match=message):
        read_rules(folder_of(given, tmp_path))


def test_five_hundred_images_in_a_sample(tmp_path: Path) -> None:
    made, _, _, _ = table_of("qwen2_vl", tmp_path)
    sizes = Sizes.of(height=[336] * 500, width=[672] * 500)
    assert made.rules["image"].tokens(sizes, np.array([0, 500])).tokens.tolist() == [500 * 12 * 24]


def test_what_has_no_count_is_named(tmp_path: Path) -> None:
    made, _, _, _ = table_of("qwen3_vl_video", tmp_path)
    sizes = Sizes.of(
        height=[480, -1, 480, 480, 480, 10_000],
        width=[640, -1, 640, 640, 640, 40],
        frames=[60, 60, -1, 60, 1, 60],
        fps=[30, 30, 30, float("nan"), 30, 30],
    )
    counted = made.rules["video"].tokens(sizes, np.arange(7), bytes_of)
    assert {reason: numbers.tolist() for reason, numbers in counted.refused.items()} == {
        "its width and height are unknown": [1],
        "its number of frames is unknown": [2],
        "its frame rate is unknown": [3],
        "it has fewer than 2 frames": [4],
        "one side is more than 200 times the other": [5],
    }
    assert counted.tokens[0] > 0 and (counted.tokens[1:] == UNKNOWN).all()


def test_offsets_must_fit(tmp_path: Path) -> None:
    made, _, sizes, _ = table_of("llava", tmp_path)
    for offsets in ([0, 3], [1, len(sizes)], [0, 5, 4, len(sizes)], []):
        with pytest.raises(fm.ConfigError, match="offsets of samples must ascend"):
            made.rules["image"].tokens(sizes, np.array(offsets, np.int64))


def test_times_of_frames() -> None:
    assert stamps(4, 2.0, 4) == ["<0.2 seconds>", "<1.2 seconds>"]
    assert stamps(3, 1.0, 3) == ["<0.5 seconds>", "<2.0 seconds>"]


def files(name: str = "qwen3_vl") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((TABLES[0].parent / f"{name}.json").read_text())["files"]
    return content


def test_parameters_belong_to_the_checkpoint(tmp_path: Path) -> None:
    """The class is that of Qwen2-VL; its limits are not."""
    given = files()
    sizes, offsets = Sizes.of(height=[3000], width=[4000]), np.array([0, 1])
    before = read_rules(folder_of(given, tmp_path))
    given["preprocessor_config.json"]["size"] = {"shortest_edge": 3136, "longest_edge": 1_003_520}
    after = read_rules(folder_of(given, tmp_path))
    counts = [made.rules["image"].tokens(sizes, offsets).tokens[0] for made in (before, after)]
    assert counts[0] > 10 * counts[1]
    assert before.identity != after.identity and before.digest != after.digest


def test_newer_folders_nest_the_parts(tmp_path: Path) -> None:
    given = files()
    part = given.pop("preprocessor_config.json")
    want = read_rules(folder_of(files(), tmp_path / "old"))
    given["processor_config.json"]["image_processor"] = part
    assert read_rules(folder_of(given, tmp_path / "new")).rules["image"].identity == want.rules["image"].identity


def test_defaults_are_listed(tmp_path: Path) -> None:
    given = files()
    del given["preprocessor_config.json"]["size"]
    assert read_rules(folder_of(given, tmp_path)).defaults["image.size"]["longest_edge"] == 1_003_520


def test_options_of_the_call_override_the_files(tmp_path: Path) -> None:
    """Pan and scan is off in each call of Gemma 3's processor, whatever its file says."""
    given = files("gemma3")
    given["preprocessor_config.json"]["do_pan_and_scan"] = True
    sizes, offsets = Sizes.of(height=[600], width=[1200]), np.array([0, 1])
    place = folder_of(given, tmp_path)
    plain = read_rules(place).rules["image"].tokens(sizes, offsets, bytes_of)
    scanned = read_rules(place, {"do_pan_and_scan": True}).rules["image"].tokens(sizes, offsets, bytes_of)
    assert plain.tokens[0] == 262 and scanned.tokens[0] > 3 * 258
    with pytest.raises(fm.ConfigError, match="do_pan_and_san: no rule of Gemma3Processor has this option"):
        read_rules(place, {"do_pan_and_san": True})


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(fm.NotFound, match="has no preprocessor_config"):
        read_rules(folder_of({}, tmp_path / "empty"))
    cases = [
        ({"processor_class": "MolmoProcessor"}, "there is no rule for MolmoProcessor"),
        ({"processor_class": None}, "the class of the processor is unknown"),
        ({"size": {"shortest_edge": 3136}}, "size must be an object with longest_edge"),
        ({"size": {"shortest_edge": "a", "longest_edge": 9}}, "size.shortest_edge must be a whole number"),
        ({"patch_size": 0}, "patch_size must be a whole number of at least 1: found 0"),
        ({"do_resize": False}, "do_resize is False: the rule is for resized images"),
    ]
    for number, (change, message) in enumerate(cases):
        given = files()
        given["preprocessor_config.json"] |= change
        if "processor_class" in change:
            del given["processor_config.json"]
        with pytest.raises(fm.ConfigError, match=message):
            read_rules(folder_of(given, tmp_path / str(number)))
    (tmp_path / "empty/preprocessor_config.json").write_text("{")
    with pytest.raises(fm.ConfigError, match="the file is not JSON"):
        read_rules(str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("name", "height", "width", "pictures", "each"),
    [
        ("qwen2_vl", 280, 560, 1, 20 * 40),  # in patches of 14, not scaled
        ("qwen3_vl", 320, 640, 1, 20 * 40),  # of 16
        ("pixtral", 320, 64, 1, 20 * 4),
        ("llava", 300, 900, 1, 24 * 24),  # cropped to 336 x 336
        ("llava_next", 336, 672, 3, 24 * 24),  # two tiles and an overview
        ("llava_onevision", 384, 768, 3, 27 * 27),
        ("llama4", 336, 336, 1, 24 * 24),
        ("phi4_multimodal", 448, 896, 3, 32 * 32),
    ],
)
def test_patches_of_a_vision_tower(
    name: str, height: int, width: int, pictures: int, each: int, tmp_path: Path
) -> None:
    found = table_of(name, tmp_path)[0].vision(images([(height, width)]))
    assert found.patches.tolist() == [pictures * each] and found.squares.tolist() == [pictures * each**2]


@pytest.mark.parametrize(
    ("name", "patch", "height", "width", "pictures", "each"),
    [
        ("internvl", [14, 14], 448, 896, 3, 32 * 32),  # two tiles and an overview
        ("internvl", None, 448, 448, 1, 32 * 32),  # which the configuration leaves out, as it is the default
        ("gemma3", 14, 300, 900, 1, 64 * 64),
        ("gemma3_crops", 14, 300, 900, 4, 64 * 64),
        ("idefics3", 14, 600, 1200, 9, 26 * 26),
        ("smolvlm", 16, 512, 512, 17, 32 * 32),
        ("mllama", 14, 560, 560, 1, 4 * 40 * 40),  # padded to 4 tiles
        ("deepseek_vl", 16, 100, 300, 1, 24 * 24),
    ],
)
def test_patches_that_the_model_says(
    name: str, patch: int | list[int] | None, height: int, width: int, pictures: int, each: int, tmp_path: Path
) -> None:
    """The processor's files do not have them; the model's config.json beside them does, and changes no count."""
    before = table_of(name, tmp_path)[0]
    with pytest.raises(fm.ConfigError, match=r"do not say into how many patches .* Copy the model's config"):
        before.vision(images([(height, width)]))
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {} if patch is None else {"patch_size": patch}}))
    made = table_of(name, tmp_path)[0]
    assert (made.identity, made.digest) == (before.identity, before.digest)
    assert made.defaults.get("tower.patch_size") == (14 if patch is None else None)
    found = made.vision(images([(height, width)]))
    assert found.patches.tolist() == [pictures * each] and found.squares.tolist() == [pictures * each**2]


def test_patches_of_frames_that_the_model_says(tmp_path: Path) -> None:
    made = table_of("internvl_video", tmp_path)[0]
    (tmp_path / "config.json").write_text('{"vision_config": {"patch_size": 14}}')
    found = (
        read_rules(str(tmp_path))
        .rules["video"]
        .vision(Sizes.of(height=[300], width=[300], frames=[60], fps=[30], together=[1]))
    )
    assert "video" in made.rules and found is not None and found.patches.tolist() == [8 * 32 * 32]


def test_a_processor_that_does_not_say_its_patches(tmp_path: Path) -> None:
    """DeepSeek-VL's second tower attends in windows, which no parameter of its files says."""
    (tmp_path / "config.json").write_text('{"vision_config": {"patch_size": 16}}')
    with pytest.raises(fm.ConfigError, match="do not say into how many patches its vision tower cuts images"):
        table_of("deepseek_vl_hybrid", tmp_path)[0].vision(images([(400, 400)]))
    (tmp_path / "config.json").write_text('{"vision_config": {"patch_size": 0}}')
    with pytest.raises(fm.ConfigError, match="patch_size must be a whole number of at least 1"):
        table_of("internvl", tmp_path)


def test_media_that_are_refused_have_no_patches(tmp_path: Path) -> None:
    found = table_of("qwen2_vl", tmp_path)[0].vision(images([(280, 560), (28, 28 * 400)]))
    assert found.patches.tolist() == [800, 0]
