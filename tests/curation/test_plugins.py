"""Taggers of the user's own: the classes, the registry, and modules under Dolma's import names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.curation import registry
from feedmill.curation.plugins import (
    BaseRegistry,
    BaseTagger,
    BaseTaggerWithMetadata,
    DocResult,
    Document,
    Span,
    TaggerRegistry,
    built_in,
    split_paragraphs,
    split_sentences,
    split_words,
)
from feedmill.curation.registry import load_modules
from feedmill.errors import ConfigError, FeedmillError
from helpers.document_datasets import attributes


@pytest.fixture
def keys() -> str:
    @TaggerRegistry.add("my_keys")
    class Keys(BaseTaggerWithMetadata):
        @property
        def defaults(self) -> list[str]:
            return ["none", "odd key!"]

        def predict(self, doc: Document) -> DocResult:
            count = len(doc.metadata)  # type: ignore[attr-defined]
            return DocResult(doc, [Span(0, 1, "keys", count / 3), Span(1, 2, "keys", 2)])

    return "my_keys"


@pytest.fixture(autouse=True)
def forget() -> object:
    yield
    for name in list(registry.known()):
        if name.startswith("my_"):
            TaggerRegistry.remove(name)


def test_spans_by_kind_with_defaults_first_and_rounded_scores(keys: str) -> None:
    found = attributes(["text"], keys, a=1)[0]
    assert list(found.items()) == [
        ("my_keys__none", []),
        ("my_keys__odd_key_", []),
        ("my_keys__keys", [[0, 1, 0.33333], [1, 2, 2.0]]),
    ]


def test_the_registry(keys: str) -> None:
    assert TaggerRegistry.has(keys) and TaggerRegistry.has("gopher_v2")
    assert keys in dict(TaggerRegistry.items())
    assert TaggerRegistry.get(keys).__name__ == "Keys"
    with pytest.raises(ConfigError, match="already"):
        TaggerRegistry.add(keys)(type("Other", (), {}))
    assert TaggerRegistry.remove(keys) and not TaggerRegistry.has(keys)


def test_spans_have_two_spellings() -> None:
    span = Span.from_spec("e__t__kind__more", [1, 3, 0.5])
    assert (span.experiment, span.tagger, span.type, len(span)) == ("e", "t", "kind__more", 2)
    assert span.to_spec() == ("e__t__kind__more", (1, 3, 0.5))
    assert Span.from_spec("plain", [0, 1, 1]).tagger == "plain"
    assert span.mention("abcdef", 1) == "abcd" and span.select(Document("s", "i", "abcdef")) == "bc"


def test_a_span_without_experiment_or_tagger_has_no_name() -> None:
    for more in ({}, {"experiment": "e"}, {"tagger": "t"}):
        with pytest.raises(AssertionError, match="the span has no"):
            Span(0, 1, "kind", **more).to_spec()


def test_results_as_json() -> None:
    doc = Document("s", "i", "abcdef", version="1")
    result = DocResult(doc, [Span(1, 3, "kind", 0.5)])
    span = {"start": 1, "end": 3, "type": "kind", "score": 0.5, "mention": "abcd"}
    assert result.to_json(window=1) == {"spans": [span]}
    whole = result.to_json(with_doc=True)
    assert whole["doc"] == {"source": "s", "version": "1", "id": "i", "text": "abcdef"}
    assert DocResult.from_json(whole).to_json(with_doc=True) == whole
    assert Span(1, 3, "kind").to_json() == {"start": 1, "end": 3, "type": "kind", "score": 1.0}


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("from dolma.core.analyzer import aggregate_summaries", "dolma.core.analyzer"),
        ("from dolma.core.registry import OtherRegistry", "OtherRegistry"),
    ],
)
def test_what_dolma_has_and_feedmill_has_not_is_named(tmp_path: Path, code: str, named: str) -> None:
    module = tmp_path / "mod.py"
    module.write_text(f"from dolma import BaseTagger\n{code}\n")
    with pytest.raises(ConfigError, match=f"mod.py.*that Feedmill does not have.*{named}.*'What is unsupported'"):
        load_modules([str(module)])


def test_parts_of_texts() -> None:
    text = "One two.\n\n  \nThree."
    assert [part.text for part in split_paragraphs(text)] == ["One two.\n", "Three."]
    assert len(split_paragraphs(text, remove_empty=False)) == 4
    assert [part.text for part in split_words("don't, ü")] == ["don't", ",", "ü"]
    assert "".join(part.text for part in split_words("a  b,ü\n", remove_empty=False)) == "a  b,ü\n"
    assert [part.text for part in split_sentences("One. Two!")] == ["One.", "Two!"]


def test_dolmas_names_are_there_only_while_a_module_is_loaded(tmp_path: Path) -> None:
    module = tmp_path / "mod.py"
    module.write_text(
        "import dolma\nfrom dolma.core.loggers import get_logger\nfrom dolma.core.ft_tagger import BaseFastTextTagger\n"
        "from dolma.core.data_types import DocumentWithMetadata, InputSpec, TextSlice\n"
        "@dolma.add_tagger('my_other')\nclass Other(dolma.BaseTagger):\n    pass\n"
    )
    before = sys.modules.get("dolma")
    load_modules([str(module)])
    assert TaggerRegistry.has("my_other") and sys.modules.get("dolma") is before
    with pytest.raises(FeedmillError, match="NotImplementedError"):
        attributes(["x"], "my_other")


def test_a_package_is_loaded_by_its_folder_and_a_module_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from dolma import add_tagger, BaseTagger\n@add_tagger('my_{0}')\nclass T(BaseTagger): pass\n"
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/__init__.py").write_text(code.format("pack"))
    (tmp_path / "single_tagger_module.py").write_text(code.format("single"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    load_modules([str(tmp_path / "pack"), "single_tagger_module"])
    assert TaggerRegistry.has("my_pack") and TaggerRegistry.has("my_single")


@pytest.mark.parametrize("code", ["1 / 0", "import surely_not_installed", "def broken(:"])
def test_a_module_that_fails_is_named(tmp_path: Path, code: str) -> None:
    module = tmp_path / "bad.py"
    module.write_text(code)
    with pytest.raises(ConfigError, match=r"bad\.py"):
        load_modules([str(module)])


@pytest.mark.parametrize(("start", "kind"), [(np.int64(0), "a"), (0, object())])
def test_spans_that_cannot_be_written_are_told_with_the_document(start: Any, kind: Any) -> None:
    @TaggerRegistry.add("my_odd")
    class Odd(BaseTagger):
        def predict(self, doc: Document) -> DocResult:
            return DocResult(doc, [Span(start, 1, kind)])

    with pytest.raises(FeedmillError, match="'my_odd' failed on this document") as caught:
        attributes(["text"], "my_odd")
    assert caught.value.record


def test_a_built_in_tagger_is_called_and_derived_from() -> None:
    documents = [Document("s", "1", "Good day. Good day."), Document("s", "2", "")]
    tagger = TaggerRegistry.get("char_length_v1")()
    assert tagger.predict(documents[0]).spans == [Span(0, 19, "length", 19.0)]
    assert [result.spans for result in tagger.tag_batch(documents)] == [tagger.predict(d).spans for d in documents]

    @TaggerRegistry.add("my_length")
    class Length(built_in("char_length_v1")):  # type: ignore[misc]
        pass

    @TaggerRegistry.add("my_half")
    class Half(built_in("char_length_v1")):  # type: ignore[misc]
        def predict(self, doc: Document) -> DocResult:
            (span,) = super().predict(doc).spans
            return DocResult(doc, [Span(0, span.end, "half", span.score / 2)])

    assert attributes(["abcd"], "my_length")[0] == {"my_length__length": [[0, 4, 4.0]]}
    assert attributes(["abcd"], "my_half")[0] == {"my_half__half": [[0, 4, 2.0]]}
    assert TaggerRegistry.get("my_half") is Half and dict(TaggerRegistry.items())["my_length"] is Length


def test_a_tagger_gets_many_documents_at_once() -> None:
    sizes = []

    @TaggerRegistry.add("my_batched")
    class Batched(BaseTagger):
        def tag_batch(self, documents: Any) -> list[DocResult]:
            sizes.append(len(documents))
            return [DocResult(doc, [Span(0, 1, "id", float(doc.id))]) for doc in documents]

    found = attributes(["x"] * 3, "my_batched")
    assert [row["my_batched__id"][0][2] for row in found] == [0.0, 1.0, 2.0] and sizes == [3]
    assert Batched().predict(Document("s", "7", "x")).spans == [Span(0, 1, "id", 7.0)]

    @TaggerRegistry.add("my_short")
    class Short(BaseTagger):
        def tag_batch(self, documents: Any) -> list[DocResult]:
            return []

    with pytest.raises(FeedmillError, match=r"failed on these 3 documents .*0 results for 3"):
        attributes(["x"] * 3, "my_short")


def test_a_registry_has_entries_of_its_own() -> None:
    class One(BaseRegistry[Any]):
        pass

    class Two(BaseRegistry[Any]):
        pass

    One.add("b")(int)
    One.add("a")(str)
    One.add("a")(str)
    assert list(One.items()) == [("a", str), ("b", int)] and not Two.has("a")
    with pytest.raises(ValueError, match="already used"):
        One.add("a")(bytes)
    with pytest.raises(ValueError, match="known are a, b"):
        One.get("c")
    assert One.remove("a") and not One.remove("a")
