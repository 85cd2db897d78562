"""Ids and masks of conversations equal those of transformers: recorded, and live where it is installed."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.documents.batch import Batch
from feedmill.tokens.chat.answers import rule_for
from feedmill.tokens.chat.reader import ChatSpec, Conversations
from feedmill.tokens.encode import Encoding, encode_batch
from feedmill.tokens.tokenizer import Tokenizer, load_tokenizer

GOLDEN = Path(__file__).parents[2] / "golden" / "chat"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
HOW = Encoding(None, None, True, False, False, 1 << 30, "<u2", loss=True, chat=True)


@cache
def record() -> Any:
    found = importlib.util.spec_from_file_location("record", GOLDEN / "record.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(record().TOKENIZER, "hf", template_source="file")


def ours(tokenizer: Tokenizer, text: str, conversation: dict[str, Any]) -> dict[str, Any]:
    """What Feedmill makes of a conversation, as `record` writes it."""
    marked = "{% generation" in text or "{%- generation" in text
    spec = ChatSpec("messages", text, None, tuple(record().SPECIAL.items()), "generation" if marked else "none")
    reader = Conversations(spec)
    assert reader._template(None)[0].has_generation == marked and rule_for("auto", marked) == (
        "generation" if marked else "turns"
    )
    found = reader.record(conversation)
    if found.text is None:
        return {}
    made = encode_batch(tokenizer, HOW, Batch([found.text], [0], [], [found.fields], 1))
    assert made.loss is not None
    ids = np.frombuffer(made.data, "<u2").tolist()
    mask = "".join(map(str, made.loss.astype(int).tolist()))
    return {"ids": ids, "mask": mask} if marked else {"ids": ids}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_ids_and_masks_are_those_of_transformers(name: str, tokenizer: Tokenizer) -> None:
    text = (GOLDEN / "templates" / f"{name}.jinja").read_text()
    rows = record().CONVERSATIONS
    assert len(rows) == len(EXPECTED[name]) == 8
    for conversation, wanted in zip(rows, EXPECTED[name], strict=True):
        assert ours(tokenizer, text, conversation) == wanted
    assert len(EXPECTED) == 12


def test_live_where_transformers_is_installed(tokenizer: Tokenizer) -> None:
    pytest.importorskip("transformers")
    assert record().all_recorded() == EXPECTED  # and ours are these, as the test above says
    shipped = importlib.util.find_spec("trl")
    if shipped is None or shipped.origin is None:
        return
    transformers = importlib.import_module("transformers")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(record().TOKENIZER / "tokenizer.json"), **record().SPECIAL
    )
    plain = [one for number, one in enumerate(record().CONVERSATIONS) if number not in (2, 3)]
    for path in sorted((Path(shipped.origin).parent / "chat_templates").glob("*.jinja")):
        text = path.read_text()
        if "strftime_now" in text:
            continue  # the date may change meanwhile
        for conversation in plain:
            assert ours(tokenizer, text, conversation) == record().recorded(theirs, text, conversation), path.name


def test_all_pieces_of_the_last_character_are_learned(tokenizer: Tokenizer) -> None:
    """transformers 4 leaves out those after the first: it looks for one token of a character."""
    text = "{% for m in messages %}{{ m.role }}: {% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    found = ours(tokenizer, text, {"messages": [{"role": "assistant", "content": "ok 🦔"}]})
    assert found["mask"].endswith("1111") and tokenizer.decode(found["ids"]) == "assistant: ok 🦔"
