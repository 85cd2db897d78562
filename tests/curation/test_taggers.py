"""What taggers say, and which of Dolma's scores are fixed unless `exact` keeps them."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.curation.registry import known, needs_file
from feedmill.curation.taggers.pii import _matches, emails
from feedmill.errors import DataError, FeedmillError
from feedmill.kernels.text.hints import PHONE
from helpers.awkward_texts import BATCHES
from helpers.document_datasets import attributes
from helpers.durations import examples

OTHERS = ("lingua_", "cc_re", "random")  # they look at more than the text
EVERY = [name for name in known() if not needs_file(name) and not name.startswith(OTHERS)]


@settings(deadline=None, max_examples=examples(40))
@given(BATCHES)
def test_every_tagger_takes_every_text_alone_and_among_others(texts: list[str]) -> None:
    together = attributes(texts, *EVERY)
    assert together == [attributes([text], *EVERY)[0] for text in texts]
    for text, found in zip(texts, together, strict=True):
        for spans in found.values():
            assert all(0 <= low <= high <= len(text) and math.isfinite(score) for low, high, score in spans)


@settings(deadline=None, max_examples=examples(40))
@given(BATCHES)
def test_exactness_changes_only_what_the_documentation_names(texts: list[str]) -> None:
    texts = [text for text in texts if text.split()] or ["x"]
    changed = {"pii_regex_with_counts_fast_v2__doc_frac"}
    for text, fixed, exact in zip(texts, attributes(texts, *EVERY), attributes(texts, *EVERY, exact=True), strict=True):
        different = {name for name in fixed | exact if fixed.get(name) != exact.get(name)}
        rest = {name for name in different - changed if not name.startswith(("code_copyright", "cld2"))}
        assert not rest or ("İ" in text and all(name.startswith("c4_v2") for name in rest))


def test_personal_data_as_a_share_of_the_text() -> None:
    text = "write to me@here.org now, " * 2
    for exact, share in ((False, 26 / 52), (True, 1 + 26 / 52)):
        found = attributes([text], "pii_regex_with_counts_fast_v2", exact=exact)[0]
        assert found["pii_regex_with_counts_fast_v2__doc_count"] == [[0, 52, 2.0]]
        assert found["pii_regex_with_counts_fast_v2__doc_frac"] == [[0, 52, round(share, 5)]]


@pytest.mark.parametrize("name", ["pii_regex_v1", "pii_regex_with_counts_v2"])
def test_personal_data_in_texts_without_words(name: str) -> None:
    assert attributes([" \n"], name)[0][f"{name}__doc"] == [[0, 2, -1.0]]
    with pytest.raises(DataError, match="has no words"):
        attributes(["words", " \n"], name, exact=True)
    assert attributes([" \n"], "pii_regex_v2", exact=True)[0]["pii_regex_v2__doc"] == [[0, 2, -1.0]]


_EMAIL = re.compile(r"[.\s@,?!;:)(]*([^\s@]+@[^\s@,?!;:)(]+?)[.\s@,?!;:)(]?\s")
_DIGITS = [" ", "\n", "(206)", " 206", "-", ".", "555", "0100", " 206 5550100", "a"]
_PIECES = ["a", "@", ".", "(", ",", " ", "\n", "\u2003", "a@b", "@.", "x.y", "é"]


@settings(deadline=None, max_examples=examples(500))
@given(st.lists(st.sampled_from(_PIECES), max_size=14))
def test_emails_are_those_of_the_expression(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert list(emails(text)) == [(*m.span(), *m.span(1)) for m in _EMAIL.finditer(text)]


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(st.sampled_from(_DIGITS), max_size=8))
def test_phone_numbers_are_those_of_the_expression(pieces: list[str]) -> None:
    text = "".join(pieces)
    wanted = [m.span() for m in re.finditer(r"\s+\(?\d{3}\)?[-. ]*\d{3}[-. ]?\d{4}", text)]
    found = [one[1:] for one in _matches(text, PHONE, 0)]
    assert found == wanted


@given(st.text("/* a", max_size=12))
def test_the_first_comment_is_that_of_the_expression(text: str) -> None:
    wanted = re.search(r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/", f"{text}copyright*/")
    found = attributes([f"{text}copyright*/"], "code_copyright_comments_v1")[0]
    spans = [[*wanted.span(), 1.0]] if wanted and "copyright" in wanted[0] else None
    assert found.get("code_copyright_comments_v1__copyright_notice") == spans


@pytest.mark.parametrize(
    "text", ["(" * 200_000 + "@", "?" * 200_000 + "@ ", "." * 200_000 + " a@b.org ", " " * 200_000 + "1 206 5550100"]
)
def test_personal_data_is_found_in_time_that_grows_with_the_text(text: str) -> None:
    names = ("pii_regex_v2", "pii_regex_with_counts_fast_v2")
    counts = {len(spans) for spans in attributes([text, "/*a" * 100_000], *names, "code_copyright_comments_v1")}
    assert counts  # hours, with an engine for expressions


def test_what_stands_near_a_number_counts_in_the_careful_tagger_only() -> None:
    text = "Phone (206) 555-0100 here, ISBN book."
    found = attributes([text], "pii_regex_v2", "pii_regex_with_counts_fast_v2")[0]
    assert "pii_regex_v2__PHONE_NUMBER" not in found
    assert found["pii_regex_with_counts_fast_v2__PHONE_NUMBER"] == [[5, 20, 1.0]]


def test_an_address_behind_another_at() -> None:
    found = attributes(["x@y@z.org \n"], "pii_regex_v2", "pii_regex_with_counts_fast_v2")[0]
    assert "pii_regex_with_counts_fast_v2__EMAIL_ADDRESS" in found


def test_too_many_questions_are_not_searched() -> None:
    text = "a@b.org \n" + "?" * 10_001
    found = attributes([text], "pii_regex_with_counts_fast_v2")[0]
    assert found["pii_regex_with_counts_fast_v2__doc_count"] == [[0, len(text), 0.0]]


def test_lines_of_c4_count_characters_of_the_text_as_it_is() -> None:
    text = "İİ\nend"
    for exact, second in ((False, [3, 6, 1.0]), (True, [5, 8, 1.0])):
        found = attributes([text], "c4_v2", exact=exact)[0]
        assert found["c4_v2__lines_with_too_few_words"][1] == second


def test_comments_at_the_beginning_end_behind_their_newlines() -> None:
    text = "# one\n# two\n\ncode()\n"
    for exact, end, share in ((False, 13, 13 / 20), (True, 11, 12 / 20)):
        found = attributes([text], "code_copyright_comments_v1", exact=exact)[0]
        assert found["code_copyright_comments_v1__comment_block"] == [[0, end, 1.0]]
        assert found["code_copyright_comments_v1__doc"] == [[0, 20, round(share, 5)]]
    only = attributes(["# all"], "code_copyright_comments_v1")[0]
    assert only["code_copyright_comments_v1__comment_block"] == [[0, 5, 1.0]]


def test_a_random_number_is_the_same_in_every_run() -> None:
    first, second = (attributes(["a", "b"], "random_number_v1") for _ in range(2))
    assert first == second
    values = [row["random_number_v1__random"][0][2] for row in first]
    assert values[0] != values[1] and all(0 <= value < 1 for value in values)


def test_languages_of_cld2_have_their_codes() -> None:
    text = "Das ist ein deutscher Satz, den jeder lesen kann, und hier steht noch einer."
    assert list(attributes([text], "cld2_doc_v2")[0]) == ["cld2_doc_v2__de"]
    assert list(attributes([text], "cld2_doc_v2", exact=True)[0]) == ["cld2_doc_v2__ge", "cld2_doc_v2__un"]
    assert attributes(["\x00" + text], "cld2_doc_v2")[0]["cld2_doc_v2__de"][0][2] > 0.9


def test_a_document_is_english_by_the_length_of_its_english_paragraphs() -> None:
    text = "This paragraph is written in plain English words.\nDieser Absatz ist auf Deutsch geschrieben worden.\n"
    found = attributes([text, ""], "cld2_en_paragraph_with_doc_score_v2")
    name = "cld2_en_paragraph_with_doc_score_v2__"
    (low, high, score), (_, _, none) = found[0][f"{name}en"]
    assert (low, high) == (0, 50) and score > 0.9 and none == 0
    assert found[0][f"{name}doc_en"][0][2] == pytest.approx(50 * score / len(text), abs=1e-5)
    assert found[1] == {f"{name}doc_en": [[0, 0, 0.0]], f"{name}doc_not_en": [[0, 0, 0.0]]}


def test_licences_are_found_in_pages() -> None:
    link = '<a rel="license" href="http://creativecommons.org/licenses/by-nc/3.0/us/">'
    zero = '<meta content="https://creativecommons.org/publicdomain/zero/1.0/deed.fr" />'
    found = attributes(["text"], "cc_re", "cc_re_fast", html=f"<p>{link}x</a>{zero}")[0]
    assert found == {
        "cc_re__cc_by_nc_3_0_us": [[0, 4, 1.0]],
        "cc_re__cc_publicdomain_zero_1_0_fr": [[0, 4, 0.75]],
        "cc_re_fast__cc_by_nc": [[0, 4, 1.0]],
    }
    with pytest.raises(DataError, match="no string 'html'"):
        attributes(["text"], "cc_re")


def test_code_is_judged_by_its_language() -> None:
    python = '"""Doc."""\n# note\nx = 1\n'
    found = attributes([python], "code_starcoder_taggers_v1", ext="py", max_stars_count=3)[0]
    assert found["code_starcoder_taggers_v1__nl_ratio_doc"][0][2] == round(len("Doc.\n note") / len(python), 5)
    assert found["code_starcoder_taggers_v1__num_github_stars_doc"][0][2] == 3
    unknown = attributes([python], "code_starcoder_taggers_v1", "code_starcoder_taggers_v2", ext=["odd"])[0]
    assert unknown["code_starcoder_taggers_v1__nl_ratio_doc"][0][2] == -1
    assert unknown["code_starcoder_taggers_v2__code_to_comment_ratio_doc"][0][2] == 0.5
    page = f"<html><style>p</style><p>{'word ' * 40}</p></html>"
    shown = attributes([page, ""], "code_starcoder_taggers_v2", ext="html")
    assert shown[0]["code_starcoder_taggers_v2__code_to_text_ratio_html_doc"][0][2] == round(200 / len(page), 5)
    assert shown[1]["code_starcoder_taggers_v2__code_to_text_ratio_html_doc"][0][2] == -1


def test_code_that_cannot_be_parsed_has_a_share_all_the_same() -> None:
    for text in ("def broken(:\n  # c\n", "\x00", "(" * 5000, "'''", "\tx\n y"):
        (found,) = attributes([text], "code_starcoder_taggers_v1", "code_starcoder_taggers_v2", ext="py")
        assert len(found["code_starcoder_taggers_v2__code_to_comment_ratio_doc"][0]) == 3


def test_repetitions_are_quick_where_an_expression_is_not() -> None:
    texts = ["ab" * 100_000, "x" * 200_000, "lorem ipsum dolor " * 20_000, "\U0001f600" * 20_000]
    found = attributes(texts, "repetitions_v1", "not_alphanum_paragraph_v1")
    assert found[0]["repetitions_v1__repetition"] == [[0, 200_000, 100_000.0]]
    assert found[1]["repetitions_v1__doc_frac_repetition"] == [[0, 200_000, 1.0]]
    assert found[3]["not_alphanum_paragraph_v1__all_punct"] == [[0, 20_000, 1.0]]


def test_all_of_dolmas_taggers_are_there_or_say_why_not() -> None:
    from feedmill.curation.registry import _REASONS

    own = {name for name, home in known().items() if home.startswith("feedmill.")}  # other tests may have added theirs
    assert (
        len(own - {"url_list", "domain_list", "adblock_list", "fasttext_doc", "tokens", "fineweb_v1"}) + len(_REASONS)
        == 99
    )
    with pytest.raises(FeedmillError, match="Presidio"):
        attributes(["x"], "pii_presidio_v1")
