"""Taggers of other packages: languages, rules of ad blockers, secrets, and code between prose."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from feedmill.curation.plugins import BuiltInTagger, Document, DocumentWithMetadata, built_in
from feedmill.curation.taggers import models
from feedmill.errors import ConfigError

ENGLISH = "The quick brown fox jumps over the lazy dog, and then it sleeps in the warm sun all day."
GERMAN = "Der schnelle braune Fuchs springt über den faulen Hund und schläft dann in der Sonne."
RULES = "[Adblock Plus 2.0]\n! comment\n||ads.example^\n-advertisement.\n||pictures.example^$image\n"


def scores(tagger: BuiltInTagger, text: str) -> dict[str, list[tuple[int, int, float]]]:
    found: dict[str, list[tuple[int, int, float]]] = {}
    for span in tagger.predict(Document("s", "i", text)).spans:
        found.setdefault(span.type, []).append((span.start, span.end, span.score))
    return found


@pytest.mark.parametrize(("family", "package"), [("lingua", "lingua"), ("langdetect", "langdetect")])
def test_languages_of_documents_and_paragraphs(family: str, package: str) -> None:
    pytest.importorskip(package)
    whole = built_in(f"{family}_doc_v1")()
    assert max(scores(whole, GERMAN).items(), key=lambda item: item[1][0][2])[0] == "de"
    english = scores(built_in(f"{family}_doc_en_v1")(), GERMAN)
    assert english == {
        "en": [(0, len(GERMAN), english["en"][0][2])],
        "not_en": [(0, len(GERMAN), 1 - english["en"][0][2])],
    }
    name = {"lingua": "lingua_en_par_v1", "langdetect": "langdetect_en_paragraph_v1"}[family]
    first, second = scores(built_in(name)(), f"{ENGLISH}\n{GERMAN}")["en"]
    assert first[2] > 3 * second[2] and (first[1], second[1]) == (len(ENGLISH) + 1, len(ENGLISH) + 1 + len(GERMAN))
    assert scores(whole, ENGLISH) == scores(whole, ENGLISH)


def test_a_text_without_letters_has_no_language() -> None:
    pytest.importorskip("langdetect")
    assert scores(built_in("langdetect_doc_v1")(), "12345 67890") == {}


def test_cld3_with_the_score_of_the_document() -> None:
    pytest.importorskip("gcld3")
    text = f"{ENGLISH}\n{GERMAN}"
    found = scores(built_in("cld3_en_paragraph_with_doc_score_v2")(), text)
    share = sum((end - start) * score for start, end, score in found["en"]) / len(text)
    assert found["doc_en"] == [(0, len(text), pytest.approx(share))]
    assert [score > 0.5 for _, _, score in found["en"]] == [True, False]
    assert scores(built_in("cld3_en_doc_v2")(), GERMAN)["en"] == [(0, len(GERMAN), 0.0)]


@pytest.mark.parametrize("name", ["rules.txt", "rules.txt.gz"])
def test_rules_of_ad_blockers(tmp_path: Path, name: str) -> None:
    pytest.importorskip("adblock")
    data = RULES.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    tagger = built_in("adblock_list")(str(tmp_path / name))

    def is_listed(url: str | None) -> bool:
        return bool(tagger.predict(DocumentWithMetadata("s", "i", "x", metadata={"url": url})).spans)

    assert (
        is_listed("https://ads.example/page") and is_listed("ads.example") and is_listed("http://a.b/-advertisement.x")
    )
    assert not is_listed("https://example.org") and not is_listed("") and not is_listed(None)
    from feedmill.curation.taggers.urls import UrlBlocker

    blocker = UrlBlocker.from_adb_paths(tmp_path / name)
    assert blocker.check_network_urls("pictures.example", None, "image")
    assert not blocker.check_network_urls("pictures.example", None, "document")
    (tmp_path / "empty.txt").write_text("! nothing\n")
    with pytest.raises(ConfigError, match="no rules"):
        built_in("adblock_list")(str(tmp_path / "empty.txt"))


def test_secrets_are_found_once_where_they_stand() -> None:
    pytest.importorskip("detect_secrets")
    text = "import os\nurl = 'https://me:hunter2secret@example.org'\nplain line\n"
    found = scores(built_in("code_secrets_v1")(), text)
    ((start, end, _),) = found["SECRET_Basic_Auth_Credentials"]
    assert text[start:end] == "hunter2secret"
    many = sum(len(spans) for kind, spans in found.items() if kind != "doc")
    assert found["doc"] == [(0, len(text), many / len(text.split()))]
    assert scores(built_in("code_secrets_v1")(), "") == {"doc": [(0, 0, -1.0)]}


def test_code_between_prose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Model:
        def predict(self, line: str, k: int) -> Any:
            code = "=" in line
            return (("__label__code", "__label__prose") if code else ("__label__prose", "__label__code")), (0.5, 0.5)

    monkeypatch.setattr(models, "load_model", lambda path: Model())
    (tmp_path / "model.bin").write_bytes(b"x")
    text = "We add numbers.\n\nx = 1\n y = 2\nThen we stop.\n}\n"
    found = scores(built_in("code_composition")(str(tmp_path / "model.bin")), text)
    whole = {kind: spans[0][2] for kind, spans in found.items()}
    assert whole == {
        "boundaries": 2.0,
        "prose_pct": 0.4, "prose": 2.0, "prose_entropy": 1.0,
        "code_pct": 0.4, "code": 2.0, "code_entropy": 1.0,
        "other_pct": 0.2, "other": 1.0, "other_entropy": 0.0,
    }  # fmt: skip
