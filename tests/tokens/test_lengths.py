"""The verb ``lengths``: tokens of samples of text and media, and what has none."""

from __future__ import annotations

import json
import os
import pickle
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.jobs.engine import Engine, Stage
from feedmill.samples.token_rules.processor import read_rules
from feedmill.tokens.verbs import lengths as module
from helpers.chat_families import no_child
from helpers.durations import slow_but
from helpers.processor_data import GOLDEN, TEMPLATE, dataset, picture, processor, talk

__all__ = ["no_child"]
pytestmark = pytest.mark.usefixtures("no_child")

pytest.importorskip("jinja2")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


MEMBERS: dict[str, bytes] = {
    "a.jpg": picture(300, 200),
    "a.json": talk("what", None, "?"),
    "b.jpg": picture(200, 300, 6),
    "b.json": talk(None),
    "c.1.jpg": picture(900, 90),
    "c.2.jpg": picture(60, 600),
    "c.json": talk(None, "and", None),
    "d.json": talk("no image"),
    "e.jpg": picture(64, 64),
    "e.json": talk(None, "says <image> itself"),
    "f.jpg": picture(64, 64),
    "f.json": talk("forgot it"),
    "g.jpg": b"\xff\xd8\xff broken",
    "g.json": talk(None),
    "h.jpg": picture(64, 64),
    "h.json": b'{"messages": 5}',
    "i.jpg": picture(64, 64),
    "i.txt": b"no conversation",
}


@pytest.fixture
def data(tmp_path: Path) -> str:
    return dataset(tmp_path / "data", MEMBERS)


def tokens_of(place: str, *sizes: tuple[int, int]) -> int:
    from feedmill.samples.token_rules.rule import Sizes

    given = Sizes.of(width=[each[0] for each in sizes], height=[each[1] for each in sizes])
    return int(read_rules(place).rules["image"].tokens(given, np.array([0, len(sizes)])).tokens[0])


def test_lengths_of_conversations(data: str, tmp_path: Path) -> None:
    """One BOS, which the template writes; the turned photo counts as 300 x 200."""
    place = processor(tmp_path / "p")
    report = fm.tokens.lengths(data, processor=place, progress=False)
    user = 1 + len("user: ") + len("\n")
    turned = tokens_of(place, (300, 200))
    assert report.lengths.dtype == np.int32 and report.lengths.tolist() == [
        user + len("what?") + turned,
        user + turned,
        user + len("and") + tokens_of(place, (900, 90), (60, 600)),
        user + len("no image"),
        *[-1] * 5,
    ]
    kept = report.lengths[:4]
    assert (report.samples, report.counted, report.tokens) == (9, 4, kept.sum())
    assert (report.shortest, report.median, report.longest) == (kept.min(), int(np.median(kept)), kept.max())
    assert report.longest_key == "c" and report.processor == "LlavaNextProcessor"
    assert {each.reason: (each.samples, each.keys) for each in report.refused} == {
        "the text has 2 of <image>, and the sample has 1 of image": (1, ["e"]),
        "the text has 0 of <image>, and the sample has 1 of image": (1, ["f"]),
        "image: its width and height are unknown": (1, ["g"]),
        "text: it is not a conversation: it has no messages, no conversations, no prompt with completion and no chosen"
        " with rejected (only 'messages')": (1, ["h"]),
        "text: the sample has no part 'json'": (1, ["i"]),
    }


def test_marks_of_media_in_texts(tmp_path: Path) -> None:
    """``<image>`` in a text is the place of an image; one mark too many has no length."""
    turns = [{"role": "user", "content": "<image>\nwhat"}, {"role": "assistant", "content": "a cat"}]
    more = [{"role": "user", "content": "<image><image>what"}, turns[1]]
    listed = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what"}]},
        {"role": "assistant", "content": "a cat"},
    ]
    members: dict[str, bytes] = {}
    for key, row in {"a": {"messages": listed}, "b": {"messages": turns}, "c": {"messages": more}}.items():
        members |= {f"{key}.jpg": picture(64, 64), f"{key}.json": json.dumps(row).encode()}
    data = dataset(tmp_path / "data", members)
    report = fm.tokens.lengths(data, processor=processor(tmp_path / "p"), progress=False)
    assert report.lengths[0] == report.lengths[1] > 0 > report.lengths[2]
    assert "2 of <image>, and the sample has 1 of image" in report.refused[0].reason


def test_a_second_run_reuses_the_first(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = processor(tmp_path / "p")
    first = fm.tokens.lengths(data, processor=place, progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(module._Counter, "count", lambda *_: pytest.fail("counted again"))
        again = fm.tokens.lengths(data, processor=place, progress=False)
    assert (first.reused, again.reused) == (0, 9) and again.refused == first.refused
    assert again.lengths.tolist() == first.lengths.tolist() and again.folder == first.folder
    shown = CliRunner().invoke(app, ["tokens", "lengths", data, "--processor", place, "--progress", "none"])
    assert shown.exit_code == 0 and "counted before" in shown.stdout, shown.output
    assert "without length: 1 sample: image: its width and height are unknown (g)" in shown.stdout


def test_whatever_determines_lengths_has_its_own_folder(data: str, tmp_path: Path) -> None:
    place = processor(tmp_path / "p")
    folders = [fm.tokens.lengths(data, processor=place, progress=False).folder]
    polite = fm.tokens.lengths(data, processor=place, chat_template_args={"polite": True}, progress=False)
    assert polite.lengths[3] == fm.tokens.lengths(data, processor=place, progress=False).lengths[3] + len("please")
    other = tmp_path / "other.jinja"
    other.write_text(TEMPLATE.replace("user", "").replace(": ", " > "))
    folders += [polite.folder, fm.tokens.lengths(data, processor=place, chat_template=other, progress=False).folder]
    for change in (
        lambda: (tmp_path / "p/preprocessor_config.json", "image_grid_pinpoints", [[672, 672]]),
        lambda: (tmp_path / "p/tokenizer_config.json", "bos_token", "<|image_pad|>"),
    ):
        path, key, value = change()
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
        folders.append(fm.tokens.lengths(data, processor=place, progress=False).folder)
    assert len(set(folders)) == len(folders) == 5


def test_damaged_lengths_are_counted_again(data: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = processor(tmp_path / "p")
    first = fm.tokens.lengths(data, processor=place, progress=False)
    (file,) = (path for path in Path(first.folder).iterdir() if path.name.startswith("0000"))
    content = bytearray(file.read_bytes())
    for damaged in (content[:-10], content.replace(first.lengths[:1].tobytes(), b"\1\0\0\0")):
        assert bytes(damaged) != bytes(content)
        file.write_bytes(damaged)
        again = fm.tokens.lengths(data, processor=place, progress=False)
        assert again.reused == 0 and again.lengths.tolist() == first.lengths.tolist()
        assert "counted again" in caplog.text


def test_a_killed_run_keeps_whole_parts(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = processor(tmp_path / "p")
    monkeypatch.setattr(module, "PART", 2)
    child = os.fork()
    if child == 0:
        write, written = module._write, []

        def dying(*given: Any) -> None:
            if len(written) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            write(*given)
            written.append(given)

        module._write = dying
        try:
            fm.tokens.lengths(data, processor=place, progress=False)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    report = fm.tokens.lengths(data, processor=place, progress=False)
    assert report.reused == 4
    monkeypatch.setattr(module, "PART", 1 << 14)
    assert fm.tokens.lengths(data, processor=place, progress=False).lengths[:4].min() > 0


def sidecars(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.name.startswith("0000")}


class Sending(Engine):
    """Sends each unit as Ray does: what it is and what it returns are pickled."""

    name = "sending"

    def run(self, stage: Stage) -> Iterator[Any]:
        for item in stage.items:
            shared, sent = pickle.loads(pickle.dumps((stage.shared, item)))
            yield pickle.loads(pickle.dumps(stage.function(shared, sent)))


def test_engines_write_the_same_bytes(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one process and on two, on a cluster, and as parts of a job array in any order, one of them twice."""
    place = processor(tmp_path / "p")
    monkeypatch.setattr(module, "PART", 2)
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "one"))
    alone = fm.tokens.lengths(data, processor=place, workers=1, progress=False)
    want = sidecars(alone.folder)
    assert len(want) == 5

    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "two"))
    two = fm.tokens.lengths(data, processor=place, workers=2, progress=False)
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cluster"))
    with Sending():
        sent = fm.tokens.lengths(data, processor=place, progress=False)
    for report in (two, sent):
        assert sidecars(report.folder) == want and report.refused == alone.refused
    words = ["tokens", "lengths", data, "--processor", place, "--engine", "part", "--progress", "none"]
    missing = CliRunner().invoke(app, [*words, "--part", "1/3"])
    assert missing.exit_code == 1 and "its parts need a place for their results. Add --work" in missing.output
    words += ["--work", str(tmp_path / "work")]
    for number, part in enumerate((3, 1, 3)):  # as on machines that share the folder of --work only
        monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / f"part{number}"))
        done = CliRunner().invoke(app, [*words, "--part", f"{part}/3"])
        assert done.exit_code == 0 and "--finish" in done.output, done.output
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "finished"))
    counted: list[int] = []
    with monkeypatch.context() as patch:
        count = module._Counter.count
        patch.setattr(module._Counter, "count", lambda *given: counted.append(given[1].number) or count(*given[:2]))  # type: ignore[func-returns-value]
        done = CliRunner().invoke(app, [*words, "--finish", "--json", "--workers", "1"])
    assert done.exit_code == 0 and sorted(counted) == [1, 4], done.output  # those of the second part, which never ran
    report = json.loads(done.stdout)
    assert sidecars(report["folder"]) == want and report["counted"] == 4
    assert not list((tmp_path / "work").iterdir())


def test_plain_text_and_chosen_media(tmp_path: Path) -> None:
    """A plain text gets the BOS of the tokenizer; media of other parts are left out, and counted."""
    members = {
        "a.jpg": picture(300, 200),
        "a.mask.png": picture(300, 200),
        "a.txt": b"see <image>",
        "b.txt": b"nothing \xff",
        "c.jpg": picture(64, 64),
        "c.txt": b"<image>",
    }
    data, place = dataset(tmp_path / "data", members), processor(tmp_path / "p")
    report = fm.tokens.lengths(data, processor=place, text="txt", media=["jpg"], progress=False)
    assert report.lengths.tolist() == [5 + tokens_of(place, (300, 200)), -1, 1 + tokens_of(place, (64, 64))]
    assert report.left_out == {"mask.png": 1} and report.refused[0].reason == "text: it is not UTF-8"
    with pytest.raises(fm.ConfigError, match="no sample has media in the part 'jpeg': parts with media are jpg"):
        fm.tokens.lengths(data, processor=place, text="txt", media=["jpeg"], progress=False)
    with pytest.raises(fm.ConfigError, match="--chat-template is for conversations"):
        fm.tokens.lengths(data, processor=place, text="txt", chat_template="a.jinja", progress=False)
    with pytest.raises(fm.FeedmillError, match="0 of 3 samples kept"):
        fm.tokens.lengths(data, processor=place, text="text", progress=False)


def test_five_hundred_images_in_a_sample(tmp_path: Path) -> None:
    image = picture(64, 64)
    members = {f"a.{number}.jpg": image for number in range(500)} | {"a.json": talk(*[None] * 500)}
    place = processor(tmp_path / "p")
    report = fm.tokens.lengths(dataset(tmp_path / "data", members), processor=place, progress=False)
    assert report.lengths.tolist() == [8 + 500 * tokens_of(place, (64, 64))]


def test_bad_folders_and_datasets(data: str, tmp_path: Path) -> None:
    place = Path(processor(tmp_path / "p"))
    without = dataset(tmp_path / "without", MEMBERS, media=False)
    with pytest.raises(fm.ConfigError, match=r"no media metadata.*prepare-media"):
        fm.tokens.lengths(without, processor=place, progress=False)
    (tmp_path / "empty").mkdir()
    with pytest.raises(fm.NotFound, match=r"no preprocessor_config.json and no processor_config.json"):
        fm.tokens.lengths(data, processor=tmp_path / "empty", progress=False)
    with pytest.raises(fm.ConfigError, match="no conversation in part 'txt' of the first samples: the sample has no"):
        fm.tokens.lengths(data, processor=place, messages="txt", progress=False)
    with pytest.raises(fm.ConfigError, match="no rule of LlavaNextProcessor has this option"):
        fm.tokens.lengths(data, processor=place, processor_args={"do_fly": True}, progress=False)
    with pytest.raises(fm.ConfigError, match="--measure uses no rules"):
        fm.tokens.lengths(data, processor=place, measure=True, check_samples=5, progress=False)
    with pytest.raises(fm.ConfigError, match="the chat template does not exist"):
        fm.tokens.lengths(data, processor=place, chat_template="nowhere.jinja", progress=False)
    other = Path(processor(tmp_path / "other", extra_special_tokens={}))
    vocabulary = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(vocabulary.replace("<image>", "<picture>"))
    with pytest.raises(fm.ConfigError, match=r"the tokenizer has no token .* which stands for image in texts"):
        fm.tokens.lengths(data, processor=other, progress=False)
    (place / "tokenizer.json").unlink()
    with pytest.raises(fm.NotFound, match=r"the folder has no tokenizer.json"):
        fm.tokens.lengths(data, processor=place, progress=False)
    config = place / "processor_config.json"
    config.write_text(json.dumps({"processor_class": "MolmoProcessor"}))
    with pytest.raises(fm.ConfigError, match="there is no rule for MolmoProcessor"):
        fm.tokens.lengths(data, processor=place, progress=False)


def test_video_of_unknown_size_is_refused(tmp_path: Path) -> None:
    """A video that `prepare-media` could not read has no sizes in the index."""
    pytest.importorskip("av")
    members = {"a.mp4": b"broken", "a.txt": b"<|video_pad|>", "b.jpg": picture(64, 64), "b.txt": b"<|image_pad|>"}
    place = processor(tmp_path / "p", "qwen3_vl")
    videos = json.loads((GOLDEN / "qwen3_vl_video.json").read_text())["files"]
    name = "video_preprocessor_config.json"
    (tmp_path / "p" / name).write_text(json.dumps(videos[name]))
    report = fm.tokens.lengths(dataset(tmp_path / "data", members), processor=place, text="txt", progress=False)
    assert report.lengths.tolist() == [-1, 1 + tokens_of(place, (64, 64))]
    assert report.refused == [("video: its width and height are unknown", 1, ["a"])]


class Pretended:
    """Stands for the processor of transformers: tokens of any sample by the number of its images."""

    name, identity = "Pretended", "1"

    def __init__(self, *_: Any) -> None:
        self.asked: list[tuple[str, int, bool]] = []

    def count(self, text: str, media: Sequence[tuple[str, bytes]], *, special: bool) -> int:
        self.asked.append((text, len(media), special))
        if "no image" in text:
            raise fm.DataError("the processor refuses it (ValueError: no)", kind="bad-media")
        return 1000 + len(media)


def test_what_the_processor_counts_otherwise_is_named(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, real = processor(tmp_path / "p"), Pretended()
    monkeypatch.setattr(module, "RealProcessor", lambda *_: real)
    found = fm.tokens.lengths(data, processor=place, progress=False).lengths
    done = CliRunner().invoke(app, ["tokens", "lengths", data, "--processor", place, "--check-samples", "3"])
    assert done.exit_code == 1 and "compared with the processor: 3 samples, 3 differ" in done.stdout, done.output
    assert f"differs: c (sample 2): predicted {found[2]:,}, real 1,002" in done.stdout
    assert "differs: d (sample 3): predicted 16, real none: the processor refuses it (ValueError: no)" in done.stdout
    # The longest and the shortest come first, and the template has written BOS itself.
    assert [(images, special) for _, images, special in real.asked[:2]] == [(2, False), (0, False)]
    report = fm.tokens.lengths(data, processor=place, measure=True, progress=False)
    assert report.measured and report.lengths.tolist() == [1001, 1001, 1002, -1, 1001, 1001, 1001, -1, -1]
    assert report.refused[0] == ("the processor refuses it (ValueError: no)", 1, ["d"])


@pytest.mark.slow
def test_the_real_processor_agrees(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    place = processor(tmp_path / "p")
    words = ["tokens", "lengths", data, "--processor", place, "--check-samples", "50", "--json"]
    done = CliRunner().invoke(app, words)
    report = json.loads(done.stdout)
    assert done.exit_code == 0 and (report["checked"], report["misses"]) == (4, []), done.output
    measured = fm.tokens.lengths(data, processor=place, measure=True, progress=False)
    assert measured.measured and measured.folder != report["folder"]
    assert (
        measured.lengths[:4].tolist() == fm.tokens.lengths(data, processor=place, progress=False).lengths[:4].tolist()
    )
    # A rule that is wrong is found: status 1, with the sample and both numbers.
    from feedmill.samples.token_rules.llava_next import LlavaNextImages

    right = LlavaNextImages.count
    monkeypatch.setattr(LlavaNextImages, "version", 99)
    monkeypatch.setattr(LlavaNextImages, "count", lambda self, sizes: right(self, sizes) + 1)
    done = CliRunner().invoke(app, words[:-1])
    assert done.exit_code == 1, done.output
    first = measured.lengths[2]
    assert f"differs: c (sample 2): predicted {first + 2:,}, real {first:,}" in done.stdout


@pytest.mark.parametrize("places", slow_but([5, 40], 5))
def test_a_plan_finds_lengths_without_a_table_of_media(
    places: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data, place = dataset(tmp_path / "data", MEMBERS), processor(tmp_path / "p")
    first = fm.open(data).lengths_by(place, progress=False)
    tables: list[str] = []
    real = type(fm.open(data)).media_table

    def counting(self: Any) -> Any:
        tables.append(self.url)
        return real(self)

    monkeypatch.setattr(type(fm.open(data)), "media_table", counting)

    def again() -> Any:
        opened = fm.open(data).lengths_by(place, progress=False)
        assert opened.counts.refused == first.counts.refused and opened.counts.identity == first.counts.identity
        for old, new in zip(
            (first.counts.tokens, first.counts.media, *first.counts.vision),
            (opened.counts.tokens, opened.counts.media, *opened.counts.vision),
            strict=True,
        ):
            np.testing.assert_array_equal(old, new)
        made, tables[:] = len(tables), []
        return made

    assert again() == 0
    (brief,) = [path for path in (tmp_path / "cache/lengths").iterdir() if path.is_file()]
    whole = brief.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // places)):
        brief.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        again()
    brief.write_bytes(whole[:-1])
    assert again() == 1
    assert again() == 0


def test_the_split_is_that_of_recipes(tmp_path: Path) -> None:
    data, place = dataset(tmp_path / "data", MEMBERS), processor(tmp_path / "p")
    report = fm.tokens.lengths(data, processor=place, progress=False)
    assert report.split == "train" == fm.tokens.lengths(data, processor=place, split="train", progress=False).split
    assert fm.tokens.lengths(data, processor=place, split="train", progress=False).reused == report.samples
    with pytest.raises(fm.NotFound, match="nosuch"):
        fm.tokens.lengths(data, processor=place, split="nosuch", progress=False)


def test_the_templates_beside_the_first_one(tmp_path: Path) -> None:
    """Rows with tools are rendered with another template of the folder, and each can be chosen by its name."""
    with_tools = json.dumps({"messages": [{"role": "user", "content": "what"}], "tools": [{"type": "function"}]})
    data = dataset(tmp_path / "data", {"a.json": talk("what"), "b.jpg": picture(64, 64), "b.json": with_tools.encode()})
    place = Path(processor(tmp_path / "p"))
    (place / "additional_chat_templates").mkdir()
    tool_use = place / "additional_chat_templates" / "tool_use.jinja"
    tool_use.write_text("{{ bos_token }}tools<image>")
    (place / "additional_chat_templates" / "short.jinja").write_text("{{ bos_token }}short")
    first = fm.open(data).lengths_by(place, progress=False)
    tool_use.write_text("{{ bos_token }}tools<image>more")
    second = fm.open(data).lengths_by(place, progress=False)
    assert (second.lengths - first.lengths).tolist() == [0, 4]
    named = fm.tokens.lengths(data, processor=place, chat_template="short", media=["jpg"], progress=False)
    assert named.lengths.tolist() == [1 + len("short"), -1]
    with pytest.raises(fm.FeedmillError, match=r"no chat template 'shor'.*'short'"):
        fm.tokens.lengths(data, processor=place, chat_template="shor", progress=False)


def test_parts_that_are_lists_of_messages(tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    for text in ("a", "bcd"):
        members[f"{text}.jpg"] = picture(64, 64)
        members[f"{text}.json"] = json.dumps(json.loads(talk(text, None))["messages"]).encode()
    data = dataset(tmp_path / "data", members)
    assert np.diff(fm.tokens.lengths(data, processor=processor(tmp_path / "p"), progress=False).lengths).tolist() == [2]


def test_forms_of_conversations_may_be_mixed(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]
    rows = (
        {"conversations": turns},
        {"prompt": "hi", "completion": "yes"},
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]},
        {"prompt": "hi", "chosen": "a", "rejected": "b"},
    )
    members = {f"{number}.json": json.dumps(row).encode() for number, row in enumerate(rows)}
    members |= {"4.jpg": picture(64, 64), "4.json": talk(None)}  # a dataset without any media has no index of them
    report = fm.tokens.lengths(dataset(tmp_path / "data", members), processor=processor(tmp_path / "p"), progress=False)
    same, *others = report.lengths.tolist()
    assert same > 0 and others[:3] == [same, same, -1]
    assert [(each.reason, each.keys) for each in report.refused] == [
        ("text: a pair of preferences has two texts", ["3"])
    ]


def test_what_changes_lengths_changes_those_of_a_plan(tmp_path: Path) -> None:
    data, place = dataset(tmp_path / "data", MEMBERS), Path(processor(tmp_path / "p"))
    before = fm.open(data).lengths_by(place, progress=False)
    (place / "chat_template.jinja").write_text(TEMPLATE + "more")
    more = fm.open(data).lengths_by(place, progress=False)
    assert (more.lengths - before.lengths)[:4].tolist() == [4] * 4
    assert {key for key, word in more.counts.identity.items() if word != before.counts.identity[key]} == {"texts"}
    with_media = fm.open(data).lengths_by(place, progress=False, media=["jpg"])
    assert with_media.counts.media.tolist() != more.counts.media.tolist()
    import sqlite3

    with sqlite3.connect(str(Path(data) / ".nv-meta/index.sqlite")) as index:
        index.execute("""UPDATE media_metadata SET metadata_json = json_set(metadata_json, '$.width', 901)
            WHERE entry_key = 'a.jpg'""")
    index.close()
    wider = fm.open(data).lengths_by(place, progress=False)
    assert wider.lengths[0] != more.lengths[0] and wider.lengths[1] == more.lengths[1]
