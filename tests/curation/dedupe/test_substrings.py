"""Repeated substrings beside all windows of all texts, in any pieces and processes, killed, and with bad input."""

import base64
import gzip
import json
import random
import shutil
import unicodedata
from functools import cache

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import feedmill as fm
from feedmill.curation.dedupe import exact, segments
from feedmill.curation.mix.config import read_config
from feedmill.curation.mix.job import mix
from feedmill.errors import ConfigError, DataError, FeedmillError
from helpers.document_folders import attributes, texts, write_documents
from helpers.kills import contents, kill_everywhere, moments
from helpers.tokenizer_data import tokenizer_file
from helpers.tokenizer_kinds import KINDS
from oracles.substrings import spans

CORPORA = [pytest.param(seed, marks=[] if seed < 6 else pytest.mark.slow) for seed in range(200)]
TOKENIZER = str(tokenizer_file("tok1k"))
FILES = [texts(23), texts(17, seed=1), [], texts(5)]


def corpus(seed):
    """Files of texts with passages in common, and a length to compare."""
    rng = random.Random(seed)
    letters = rng.choice(["ab", "abc", "abcdefgh", "aé漢", "漢字語😀a", "ab \n"])
    pool = ["".join(rng.choices(letters, k=rng.randrange(1, 80))) for _ in range(6)]

    def text():
        parts = range(rng.randrange(6))
        return "".join(
            rng.choice((rng.choice(pool), "".join(rng.choices(letters, k=rng.randrange(60))))) for _ in parts
        )

    files = [[text() for _ in range(rng.randrange(1, 12))] for _ in range(rng.randrange(1, 4))]
    return files, [text() for _ in range(3)], rng.choice([1, 2, 3, 4, 5, 6, 7, 9, 12, 16, 20, 33, 50])


def tokens(text):
    found = reference().encode(text, add_special_tokens=False)
    return found.ids, found.offsets


@cache
def reference():
    return Tokenizer.from_file(TOKENIZER)


def found_in(root, name="dup_substrings"):
    return [[row["attributes"][name] for row in rows] for rows in attributes(root, name)]


def dedupe(root, length, **more):
    return fm.dedupe([f"{root}/documents"], "substrings", length=length, progress=False, **{"workers": 1, **more})


@pytest.mark.parametrize("seed", CORPORA)
def test_as_brute_force(tmp_path, seed, monkeypatch):
    files, known, length = corpus(seed)
    if seed % 2:  # many segments, ranges and blocks give what one gives
        monkeypatch.setattr(segments, "SEGMENT", 1)
        monkeypatch.setattr(exact, "RANGE", 5)
        monkeypatch.setattr("feedmill.formats.documents.BLOCK", 100)
    write_documents(tmp_path, *files)
    write_documents(tmp_path / "known", known)
    report = dedupe(tmp_path, length)
    wanted = spans(files, length)
    assert found_in(tmp_path) == wanted
    assert report.units == sum(len(own) for rows in wanted for own in rows)
    dedupe(tmp_path, length, every_copy=True, name="every")
    assert found_in(tmp_path, "every") == spans(files, length, every=True)
    dedupe(tmp_path, length, against=[f"{tmp_path}/known/documents"], name="known")
    assert found_in(tmp_path, "known") == spans(files, length, known=known)


@pytest.mark.parametrize("seed", CORPORA)
def test_tokens_as_brute_force(tmp_path, seed, monkeypatch):
    """Runs of tokens, in characters: of a tokenizer whose tokens may be parts of a character."""
    files, known, length = corpus(seed)
    length = 1 + length // 3
    if seed % 2:
        monkeypatch.setattr(segments, "SEGMENT", 1)
        monkeypatch.setattr(exact, "RANGE", 5)
        monkeypatch.setattr("feedmill.formats.documents.BLOCK", 100)
    write_documents(tmp_path, *files)
    write_documents(tmp_path / "known", known)
    more = {"tokenizer": TOKENIZER}
    report = dedupe(tmp_path, length, **more)
    wanted = spans(files, length, tokens=tokens)
    assert found_in(tmp_path) == wanted
    assert report.units == sum(len(own) for rows in wanted for own in rows)
    dedupe(tmp_path, length, every_copy=True, name="every", **more)
    assert found_in(tmp_path, "every") == spans(files, length, every=True, tokens=tokens)
    dedupe(tmp_path, length, against=[f"{tmp_path}/known/documents"], name="known", **more)
    assert found_in(tmp_path, "known") == spans(files, length, known=known, tokens=tokens)


def test_a_long_copy_at_every_distance(tmp_path):
    """Copies of a passage of every length around the limit, cut at both sides."""
    passage = "".join(random.Random(0).choices("abcdefgh ijkl", k=90))
    members = [passage, *(f"{n}<{passage[n : n + 30 + n % 7]}>" for n in range(50))]
    write_documents(tmp_path, members)
    dedupe(tmp_path, 33)
    assert found_in(tmp_path) == spans([members], 33)


@pytest.mark.parametrize("tokenizer", [None, TOKENIZER])
def test_any_number_of_processes(tmp_path, tokenizer):
    results = []
    for processes in (1, 3):
        root = tmp_path / str(processes)
        write_documents(root, *FILES)
        dedupe(root, 20, workers=processes, tokenizer=tokenizer)
        results.append(contents(root))
        assert found_in(root) == spans(FILES, 20, tokens=tokenizer and tokens)
    assert results[0] == results[1]


def test_words_that_the_vocabulary_lacks_are_compared_by_their_text(tmp_path):
    """All of them are the same token: two passages of unknown words would be copies of one another."""
    words = models.WordLevel({"[UNK]": 0, "and": 1, "or": 2}, "[UNK]")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(f"{tmp_path}/words.json")
    write_documents(tmp_path, ["one and two and three or", "uno and due and tre or", "x two and three or y"])
    dedupe(tmp_path, 3, tokenizer=f"{tmp_path}/words.json")
    assert found_in(tmp_path) == [[[], [], [[2, 18, 1]]]]


def test_characters_that_the_tokenizer_composes(tmp_path, monkeypatch):
    """A span is one of the document, although the tokens are those of another text."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()]
    (tmp_path / "qwen.tiktoken").write_bytes(b"".join(lines))
    passage = "Cafe\u0301 \u1100\u1161\u11a8 nai\u0308ve"
    write_documents(tmp_path, [f"e\u0301 e\u0301 <{passage}>", f"{passage}.", unicodedata.normalize("NFC", passage)])
    monkeypatch.setattr("feedmill.tokens.kinds.ranks.name_of", lambda *_: "qwen")
    dedupe(tmp_path, 12, tokenizer=f"{tmp_path}/qwen.tiktoken")
    assert found_in(tmp_path) == [[[], [[0, len(passage), 1]], [[0, 12, 1]]]]


def make(root):
    write_documents(root, texts(12), texts(9, seed=1))


@pytest.mark.parametrize("more", [["--length", "20"], ["--length", "6", "-t", TOKENIZER]])
@moments(3, least=4)
def test_killed_anywhere(tmp_path, moments, least, more):
    words = ["dedupe", "documents", "--by", "substrings", *more, "--workers", 1]
    assert kill_everywhere(words, make, tmp_path, moments) >= least


def test_another_tokenizer_is_another_run(tmp_path):
    write_documents(tmp_path, *FILES)
    path = tmp_path / "tokenizer.json"
    shutil.copy(TOKENIZER, path)
    assert not dedupe(tmp_path, 6, tokenizer=path).skipped
    assert dedupe(tmp_path, 6, tokenizer=path).skipped
    shutil.move(path, tmp_path / "moved.json")
    assert dedupe(tmp_path, 6, tokenizer=tmp_path / "moved.json").skipped  # wherever it lies
    shutil.copy(tokenizer_file("tok256"), path)
    assert not dedupe(tmp_path, 6, tokenizer=path).skipped


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("no/such.json", "the tokenizer does not exist"),
        (str(KINDS / "unigram.model"), "the characters of tokens, as for loss masks, require a tokenizer.json"),
        (__file__, "this is not a tokenizer"),
    ],
)
def test_tokenizers_that_cannot_be_used(tmp_path, path, what):
    write_documents(tmp_path, ["a"])
    with pytest.raises(FeedmillError, match=what):
        dedupe(tmp_path, 6, tokenizer=path)
    assert not (tmp_path / "attributes").exists()


def test_places_that_are_in_no_order_are_an_error(tmp_path, monkeypatch):
    write_documents(tmp_path, ["a line of words, twice"] * 2)
    monkeypatch.setattr(
        "feedmill.tokens.tokenizer.Tokenizer.places", lambda _, text, ids: np.array([[5, 2]] * len(ids))
    )
    with pytest.raises(DataError, match="does not say where its tokens are"):
        dedupe(tmp_path, 3, tokenizer=TOKENIZER)


def test_a_file_that_changes_meanwhile_is_an_error(tmp_path, monkeypatch):
    write_documents(tmp_path, ["a long line of words, twice", "a long line of words, twice"])
    compare = exact.compare

    def changing(*args, **more):
        write_documents(tmp_path, ["a long line", "of words, once"])
        return compare(*args, **more)

    monkeypatch.setattr("feedmill.curation.dedupe.substrings.compare", changing)
    with pytest.raises(DataError, match="changed while it was read"):
        dedupe(tmp_path, 10)


@pytest.mark.parametrize(
    "more",
    [
        {"length": 0},
        {"length": 1 << 30},
        {"length": 1 << 19, "tokenizer": TOKENIZER},
        {"length": 9, "min_length": 3},
        {"length": 9, "min_words": 3},
        {"length": 9, "keep_empty": True},
        {"length": 9, "key": "$.id"},
        {"length": 9, "ngram": 3},
        {"length": 9, "bloom": "f.bin", "items": 9},
        {"length": 9, "every_copy": True, "against": ["other/documents"]},
    ],
)
def test_bad_options(tmp_path, more):
    write_documents(tmp_path, ["a"])
    with pytest.raises(ConfigError):
        fm.dedupe([f"{tmp_path}/documents"], "substrings", progress=False, **more)


@pytest.mark.parametrize("more", [{"length": 9}, {"every_copy": True}, {"tokenizer": TOKENIZER}])
def test_options_of_substrings_only(tmp_path, more):
    write_documents(tmp_path, ["a"])
    with pytest.raises(ConfigError, match="requires --by substrings"):
        fm.dedupe([f"{tmp_path}/documents"], progress=False, **more)


@pytest.mark.parametrize("more", [{"length": 40}, {"length": 20, "tokenizer": TOKENIZER, "space": " "}])
def test_a_filter_cuts_the_passages(tmp_path, more):
    space = more.pop("space", "")  # the one after the passage is of the token that follows
    passage = "Zwölf Boxkämpfer jagen Viktor quer über den großen Deich 日本語😀. "
    write_documents(tmp_path, [f"one {passage}eins", f"two {passage}zwei"], [f"drei {passage}three"])
    dedupe(tmp_path, **more)
    stream = {
        "name": "cut",
        "documents": [f"{tmp_path}/documents/*"],
        "attributes": ["dup_substrings"],
        "output": {"path": f"{tmp_path}/cut", "max_size_in_bytes": 1 << 20},
        "span_replacement": [{"span": "$.attributes.dup_substrings", "min_score": 0.5, "replacement": "|"}],
    }
    mix(read_config({"streams": [stream]}), workers=1)
    lines = [
        line for path in (tmp_path / "cut").glob("*.gz") for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    assert {json.loads(line)["text"] for line in lines} == {
        f"one {passage}eins",
        f"two|{space}zwei",
        f"drei|{space}three",
    }
