"""Folders that `AutoTokenizer` reads: ids of transformers 4.57 (golden) and 5 (installed), or a word about it."""

from __future__ import annotations

import json
import logging
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.errors import ConfigError
from feedmill.formats.tokens.manifest import read_manifest
from feedmill.storage import open_store
from feedmill.tokens.kinds import releases
from feedmill.tokens.kinds.releases import APPLIED, HARMLESS
from feedmill.tokens.tokenizer import load_tokenizer
from helpers.tokenizer_data import GOLDEN, pbin_documents, tokenizer_file, write_lines
from helpers.tokenizer_folders import COUNT, TEXTS, digest, make, original
from helpers.tokenizer_kinds import MADE

KNOWN = json.loads((GOLDEN / "templates/releases.json").read_bytes())


def major() -> str:
    try:
        return version("transformers").split(".")[0]
    except PackageNotFoundError:
        return ""


needs_five = pytest.mark.skipif(major() != "5", reason="needs transformers 5")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    if find_spec("huggingface_hub"):  # reads the variable when it is imported: later tests would be offline
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def read(folder: Path, source: str) -> tuple[list[list[int]], list[str]] | ConfigError:
    """The ids of a folder and its settings, or why it is refused."""
    try:
        found = load_tokenizer(folder, "hf", check=False, template_source=source)  # type: ignore[arg-type]
    except ConfigError as error:
        return error
    ids, lengths = found.encode(TEXTS)
    return [piece.tolist() for piece in np.split(ids, np.cumsum(lengths)[:-1])], found.settings


def test_transformers4_gives_the_ids_of_457(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed, folder in enumerate(make(tmp_path / "f")):
        found, wanted = read(folder, "transformers4"), KNOWN[str(seed)]
        if isinstance(found, ConfigError):
            assert found.kind in ("undecided-template", "unknown-token"), (seed, found)
            seen["refused"] += 1
        elif wanted is not None:
            assert digest(found[0]) == wanted, seed
            seen["same"] += 1
    assert seen["same"] > COUNT // 3 and seen["refused"] < COUNT // 4, seen


@needs_five
def test_transformers5_gives_the_ids_of_the_installed_release(tmp_path: Path) -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    seen: Counter[str] = Counter()
    for seed, folder in enumerate(make(tmp_path / "f")):
        wanted = original(folder)
        if wanted is None:
            continue
        found = read(folder, "transformers5")
        assert not isinstance(found, ConfigError) and found[0] == wanted, (seed, found)
        by_default = read(folder, "auto")
        if isinstance(by_default, ConfigError):  # a contradiction, or the releases differ
            assert by_default.kind in ("undecided-template", "unknown-token"), (seed, by_default)
            assert "--template-source" in str(by_default)
            seen["undecided" if digest(wanted) != KNOWN[str(seed)] else "refused"] += 1
        else:
            assert by_default[0] == wanted, seed
            seen["read"] += 1
    assert seen["read"] > COUNT // 4 and seen["undecided"] > COUNT // 10 and seen["refused"] < COUNT // 6, seen


@needs_five
def test_the_table_of_classes_is_that_of_the_installed_release() -> None:
    from transformers.models.auto import tokenization_auto as auto

    for kind, name in auto.TOKENIZER_MAPPING_NAMES.items():
        as_it_is = name in ("TokenizersBackend", "MistralCommonBackend", None)
        wanted = "" if as_it_is else name.removesuffix("Fast")
        found = releases.class_of({}, {"model_type": kind}, {"pre_tokenizer": None})
        assert found == wanted or (found == "" and wanted.removesuffix("Tokenizer") in releases._OTHERS.split()), kind
        assert releases.class_of({"tokenizer_class": name}, {}, {"pre_tokenizer": None}) == wanted, name
    assert {*releases._MISNAMED.split()} == auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS


def folder_with(tmp_path: Path, settings: dict[str, Any]) -> Path:
    folder = tmp_path / "t"
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes(tokenizer_file("tok1k").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | settings))
    return folder


@pytest.mark.parametrize("form", [{"image_token": "<image>"}, ["<image>"]])
def test_extra_special_tokens_are_tokens(form: Any, tmp_path: Path) -> None:
    found = load_tokenizer(folder_with(tmp_path, {"extra_special_tokens": form}))
    assert len(found.encode(["<image>"]).ids) == 1 and "token '<image>'" in found.settings
    assert ("as transformers 5.24" in found.settings) == isinstance(form, list)  # release 4 cannot read a list


def test_split_special_tokens_makes_them_plain_text(tmp_path: Path) -> None:
    plain = load_tokenizer(folder_with(tmp_path, {"split_special_tokens": True}))
    assert len(plain.encode(["<|endoftext|>"]).ids) > 1 and "split_special_tokens" in plain.settings
    assert not plain.reads_special
    alone = load_tokenizer(tmp_path / "t", template_source="file")
    assert len(alone.encode(["<|endoftext|>"]).ids) == 1


@pytest.mark.parametrize(
    "settings",
    [{"auto_map": {"AutoTokenizer": ["a.B", None]}}, {"fix_mistral_regex": True}, {"from_slow": True}],
)
def test_keys_that_code_decides_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    folder = folder_with(tmp_path, settings)
    with pytest.raises(
        ConfigError, match=f"{next(iter(settings))} .* not applied. Pass --template-source file"
    ) as error:
        load_tokenizer(folder)
    assert error.value.kind == "undecided-template"
    assert load_tokenizer(folder, template_source="file").backend == "fastokens"


def test_every_harmless_key_leaves_the_ids_alone_and_unknown_ones_are_named(tmp_path: Path) -> None:
    assert not APPLIED & HARMLESS.keys() and all(HARMLESS.values())
    wanted = load_tokenizer(folder_with(tmp_path, {})).encode(TEXTS).ids.tolist()
    found = load_tokenizer(folder_with(tmp_path, dict.fromkeys(HARMLESS, "x")))
    assert found.encode(TEXTS).ids.tolist() == wanted and found.settings == []
    found = load_tokenizer(folder_with(tmp_path, {"odd": 1, "new": 2, "model_max_length": 1}))
    assert found.encode(TEXTS).ids.tolist() == wanted and found.settings == ["not known, no effect: new, odd"]


def test_a_run_says_which_release_it_follows(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<|im_start|>"})
    source = write_lines(tmp_path / "a.jsonl", ["x"])
    words = ["tokenize", str(source), "-o", str(tmp_path / "a"), "-t", str(folder), "--eos", "<|im_end|>"]
    done = CliRunner().invoke(app, words)
    shown = " ".join(done.output.split())
    assert done.exit_code == 1 and "transformers 4.57 and 5.24 read this tokenizer differently: around a text" in shown
    assert "the first adds <|im_start|>, the other nothing" in shown
    for release, first in (("5", 2), ("4", 3)):
        done = CliRunner().invoke(app, [*words, "--template-source", f"transformers{release}", "--overwrite"])
        assert done.exit_code == 0 and f"as transformers {release}." in done.output, done.output
        manifest = read_manifest(open_store(tmp_path), "a.pbin")
        assert manifest is not None and manifest.tokenizer is not None and manifest.tokens == first
        assert manifest.tokenizer.settings["template_source"] == f"transformers{release}"


def test_a_class_that_is_not_known_is_read_as_457_and_named(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"tokenizer_class": "NougatTokenizerFast"})
    assert "class NougatTokenizer as transformers 4.57" in load_tokenizer(folder).settings[0]
    with pytest.raises(ConfigError, match=r"builds the class NougatTokenizer is not known. .*save_pretrained"):
        load_tokenizer(folder, template_source="transformers5")


def test_added_tokens_have_the_ids_of_tokenizers_not_those_written(tmp_path: Path) -> None:
    """`tokenizers` numbers them itself, so that a gap or a wrong number in the file counts for nothing."""
    document = json.loads(tokenizer_file("tok1k").read_bytes())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    document["added_tokens"] += [{"id": 1090, "content": "<x>", **flags}, {"id": 1085, "content": "<y>", **flags}]
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<x>"}))
    for source in ("file", "auto"):
        found = load_tokenizer(tmp_path, template_source=source)  # type: ignore[arg-type]
        assert found.encode(["<x><y>"]).ids.tolist() == [found.require("<x>"), found.require("<y>")] == [1084, 1085]
        assert found.settings[-1] == "id of '<x>' 1084, not 1090" and found.size == 1086 and found.backend == "hf"
    source = write_lines(tmp_path / "a.jsonl", ["x"])
    done = CliRunner().invoke(app, ["tokenize", str(source), "-o", str(tmp_path / "a"), "-t", str(tmp_path)])
    assert done.exit_code == 0 and pbin_documents(tmp_path / "a.pbin")[0][-1] == 1084


def test_conversations_have_the_tokens_of_the_settings(tmp_path: Path) -> None:
    """What goes around a text does not count for them, so that release 4 and 5 agree here."""
    settings = {"extra_special_tokens": {"image_token": "<image>"}, "tokenizer_class": "LlamaTokenizerFast"}
    folder = folder_with(
        tmp_path, settings | {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": None}
    )
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    messages = [{"role": "user", "content": "a<image>"}, {"role": "assistant", "content": "b"}]
    source = write_lines(tmp_path / "c.jsonl", [{"messages": messages}])
    words = ["tokenize", str(source), "-o", str(tmp_path / "c"), "-t", str(folder), "--chat", "messages"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    reference = load_tokenizer(folder, template_source="transformers5")
    wanted = [reference.require(token) for token in ("a", "<image>", "<|im_end|>", "b", "<|im_end|>")]
    assert pbin_documents(tmp_path / "c.pbin") == [wanted]


def test_transformers5_is_refused_for_files_without_a_tokenizer_json(tmp_path: Path) -> None:
    path = MADE["gpt2"](tmp_path)
    assert load_tokenizer(path).settings == ["class GPT2Tokenizer of transformers 4.57"]
    with pytest.raises(ConfigError, match="builds the class GPT2Tokenizer is not known"):
        load_tokenizer(path, template_source="transformers5")
