"""Taggers over local files: fastText models, tokenizers, lists of addresses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from feedmill.curation.registry import FOLDER_VARIABLE, Choice
from feedmill.curation.tag import tag
from feedmill.curation.taggers.urls import clean_url, domain
from feedmill.errors import ConfigError, FeedmillError, NotFound
from helpers.document_datasets import attributes, document, write_documents

GOLDEN = Path(__file__).parents[1] / "golden/dolma/tag"
MODEL = GOLDEN / "models/tiny.bin"
TEXT = "This is a sentence. Here comes another one!\nAnd a second line.\n"


def tokenizer(folder: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, "?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    path = folder / "tokenizer.json"
    made.save(str(path))
    return path


def test_labels_are_scored_over_documents_paragraphs_and_sentences() -> None:
    whole = attributes([TEXT], f"fasttext_doc={MODEL}", f"dolma17-quality={MODEL}")[0]
    assert all(spans[0][:2] == [0, len(TEXT)] for spans in whole.values())
    assert sum(spans[0][2] for name, spans in whole.items() if name.startswith("fasttext_doc")) == pytest.approx(
        1, abs=1e-3
    )
    sentences = attributes([TEXT, ""], f"jigsaw_nsfw_sencence_v2={MODEL}")
    assert [span[:2] for span in next(iter(sentences[0].values()))][:2] == [[0, 19], [20, 43]]
    assert sentences[1] == {}
    lines = attributes([TEXT], f"ft_lang_id_paragraph_v1={MODEL}")[0]
    assert [span[:2] for span in next(iter(lines.values()))] == [[0, 44], [44, 63]]


def test_english_has_an_opposite() -> None:
    found = attributes([TEXT], f"ft_lang_id_en_doc_v2={MODEL}")[0]
    english, other = (found[f"ft_lang_id_en_doc_v2__{name}"][0][2] for name in ("en", "not_en"))
    assert english + other == pytest.approx(1)


def test_tokens_are_counted(tmp_path: Path) -> None:
    path = tokenizer(tmp_path)
    found = attributes([" a b  c ", "", " "], f"tokens={path}", f"dolma_v2_tokenizer={path}")
    assert [row["tokens__tokens"][0][2] for row in found] == [3, 0, 0]
    assert [row["dolma_v2_tokenizer__length"][0][2] for row in found] == [3, 0, 0]


def test_what_training_left_in_a_tokenizer_has_no_effect(tmp_path: Path) -> None:
    """Truncation would cut the count, padding fill it up, and dropout make it random."""
    from tokenizers import Tokenizer, models

    path = tmp_path / "bpe.json"
    made = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, "abab": 3}, [("a", "b"), ("ab", "ab")], dropout=0.5))
    made.enable_truncation(2)
    made.enable_padding(length=50)
    made.save(str(path))
    found = attributes(["abab" * 7] * 20, f"tokens={path}", f"dolma_v2_tokenizer={path}")
    assert [row["tokens__tokens"][0][2] for row in found] == [7] * 20
    assert [row["dolma_v2_tokenizer__length"][0][2] for row in found] == [7] * 20


def test_a_folder_of_models_serves_names_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(NotFound, match=r"lid\.176\.bin"):
        Choice.parse("ft_lang_id_doc_v1")
    shutil.copy(MODEL, tmp_path / "lid.176.bin")
    assert attributes([TEXT], "ft_lang_id_doc_v1") == attributes([TEXT], f"ft_lang_id_doc_v1={MODEL}")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_text("not a model")
    for name in ("fasttext_doc", "tokens"):
        with pytest.raises(ConfigError, match="is not a"):
            attributes([TEXT], f"{name}={path}")
    path.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="no entries"):
        attributes([TEXT], f"url_list={path}")
    with pytest.raises(ConfigError, match="not downloaded"):
        from feedmill.curation.fasttexts import load_model

        load_model("https://example.org/model.bin")


def test_another_model_makes_attributes_stale(tmp_path: Path) -> None:
    write_documents(tmp_path / "documents/x.jsonl", [document(1)])
    path = tokenizer(tmp_path)

    def run() -> int:
        return tag([f"{tmp_path}/documents"], [f"tokens={path}"], progress=False).reused

    assert (run(), run()) == (0, 1)
    changed = json.loads(path.read_text())
    changed["model"]["vocab"]["quick"] = 3
    path.write_text(json.dumps(changed))
    assert run() == 0


@pytest.mark.parametrize(
    ("url", "whole", "host"),
    [
        ("https://www.Example.org:8080/A/b/?q#f", "www.example.org:8080/a/b", "example.org"),
        ("example.org", "example.org", "example.org"),
        ("http://wwwild.com/", "wwwild.com", "wwwild.com"),
        ("http://[::1/", "", ""),
        ("http://x:99999999/", "", ""),
        ("", "", ""),
    ],
)
def test_addresses_are_compared_in_one_spelling(url: str, whole: str, host: str) -> None:
    assert (clean_url(url), domain(url)) == (whole, host)


def test_lists_of_addresses(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("# list\n0.0.0.0 bad.org\n10.1.1.1 localhost\n||ads.net^\n\nhttps://good.com/page\n! end\n")
    urls = ["http://www.bad.org/x", "ads.net", "https://good.com/page/?x", "https://good.com", "http://10.1.1.1/", None]
    for name, wanted in (("domain_list", [0, 1, 2, 3, 4]), ("url_list", [1, 2, 4])):
        found = [attributes(["x"], f"{name}={path}", url=url)[0] for url in urls]
        assert [k for k, row in enumerate(found) if row == {f"{name}__url": [[0, 1, 1.0]]}] == wanted


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for package, name in (("pycld2", "cld2_doc_v2"), ("bs4", "code_starcoder_taggers_v1")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(FeedmillError, match="pip install"):
            attributes(["x"], name)
