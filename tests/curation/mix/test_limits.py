"""Short rules and presets: what they keep, the names they find, and bad ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from feedmill.cli.output import show_dropped
from feedmill.curation import registry
from feedmill.curation.dedupe.job import dedupe
from feedmill.curation.documents import Batch, RowWithMetadata
from feedmill.curation.mix.config import read_config
from feedmill.curation.mix.job import mix
from feedmill.curation.mix.limits import PRESETS, Limit, resolved
from feedmill.curation.mix.names import kinds
from feedmill.curation.mix.verdict import why_dropped
from feedmill.curation.tag import tag
from feedmill.documents.lineage.chain import Row
from feedmill.documents.lineage.sidecar import read_lineage
from feedmill.errors import ConfigError, FeedmillError
from feedmill.filtering import filter as filter_documents
from feedmill.jobs.parts import PartEngine

WORDS = "the quick brown fox that jumps over the lazy dog and is of no use to be with it have "


def documents(root: Path, texts: list[str]) -> list[str]:
    folder = root / "documents"
    folder.mkdir(parents=True)
    rows = [json.dumps({"id": f"d{n}", "text": text, "source": "t"}) for n, text in enumerate(texts)]
    (folder / "a.jsonl").write_text("\n".join(rows) + "\n")
    return [str(folder)]


def tree(root: Path, **filters: Any) -> dict[str, Any]:
    stream = {
        "name": "s",
        "documents": [f"{root}/documents/*"],
        "attributes": ["quality"],
        "filter": filters,
        "output": {"path": str(root / "out"), "discard_fields": ["attributes"]},
    }
    return {"streams": [stream]}


def kept(root: Path) -> list[str]:
    return [json.loads(line)["id"] for line in gzip.open(root / "out/s-0000.jsonl.gz", "rt")]


@pytest.mark.parametrize(
    ("text", "spans", "violated"),
    [
        ("a >= 2", [[0, 1, 2]], False),
        ("a >= 2.0", [[0, 1, 2]], False),
        ("a > 2", [[0, 1, 2.0]], True),
        ("a<1e-3", [[0, 1, 0.0005], [1, 2, 0.5]], True),
        ("a != 0", [], False),
        ("a == -1", None, False),
        ("a <= .5", 0.25, False),
        ("a <= .5", 0.75, True),
        ("a <= .5", "high", True),
        ("a <= .5", [[0, 1, None]], True),
        ("a <= .5", [[0, 1, True]], True),
    ],
)
def test_every_score_has_to_be_inside(text: str, spans: Any, violated: bool) -> None:
    document = {"id": "x", "attributes": {} if spans is None else {"a": spans}}
    assert Limit.parse(text).violated(document) is violated
    assert not Limit.parse(text).violated({"id": "x"})


def test_a_filter_of_short_rules_keeps_what_satisfies_all(tmp_path: Path) -> None:
    texts = ["one two three", WORDS, f"{WORDS}write to me@example.org now.", WORDS * 3]
    tag(documents(tmp_path, texts), ["gopher_v2", "pii_regex_v2"], name="quality", progress=False)
    rules = ["gopher_v2.word_count >= 10", "pii_regex_v2.EMAIL_ADDRESS < 0.5", "quality__gopher_v2__word_count<40"]
    report = mix(read_config(tree(tmp_path, keep=rules)), workers=1, progress=False)
    assert kept(tmp_path) == ["d1"]
    assert report.streams[0].counts.dropped == {
        "keep quality__gopher_v2__word_count >= 10": 1,
        "keep quality__pii_regex_v2__EMAIL_ADDRESS < 0.5": 1,
        "keep quality__gopher_v2__word_count < 40": 1,
    }
    lineage = read_lineage(str(tmp_path / "out/s-0000.jsonl.gz"))
    assert lineage is not None
    path, (few, mail, many) = str(tmp_path / "documents/a.jsonl"), report.streams[0].counts.dropped
    verdicts = [why_dropped(lineage.header.options, Row(path, row)) for row in range(4)]
    assert verdicts == [few, None, mail, many]


def test_rules_of_a_preset_come_first_and_count_once(tmp_path: Path) -> None:
    config = read_config(tree(tmp_path, presets=["gopher", "gopher"], keep=["x < 1", PRESETS["gopher"][0]]))
    assert config.streams[0].keep == (*PRESETS["gopher"], "x < 1")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_name_what_their_taggers_write(name: str) -> None:
    for text in PRESETS[name]:
        tagger, _, kind = Limit.parse(text).name.partition(".")
        known = kinds(tagger)
        assert known is not None and kind in known, text


def test_a_preset_filters_tagged_documents(tmp_path: Path) -> None:
    lines = "\n".join(f"This is line number {n}, and it is a whole sentence of some words." for n in range(9))
    texts = [lines, "no end\nno end\nno end", WORDS]
    tag(documents(tmp_path, texts), ["fineweb_v1"], name="quality", progress=False)
    mix(read_config(tree(tmp_path, presets=["fineweb"])), workers=1, progress=False)
    assert kept(tmp_path) == ["d0"]


def test_names_are_found_by_their_end() -> None:
    known = ["q__gopher_v2__word_count", "p__gopher_v2__word_count", "dup", "r__c4_v2__line_count"]
    assert resolved(["c4_v2.line_count >= 3"], known, "s") == ("r__c4_v2__line_count >= 3",)
    assert resolved(["q.gopher_v2.word_count < 1e3", "dup < 1"], known, "s") == (
        "q__gopher_v2__word_count < 1e3",
        "dup < 1",
    )
    with pytest.raises(ConfigError, match="could mean p__gopher_v2__word_count or q__gopher_v2__word_count"):
        resolved(["gopher_v2.word_count > 0"], known, "s")


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"keep": ["gopher_v2.word_count >= many"]}, r"keep\[0\].*is not a valid rule: expected NAME OP NUMBER"),
        ({"keep": ["$.attributes.x"]}, "JSONPath"),
        ({"presets": ["gofer"]}, "Did you mean 'gopher'"),
        ({"preset": ["gopher"]}, "Did you mean 'presets'"),
        ({"keep": "x < 1"}, "wrong type"),
    ],
)
def test_bad_rules(filters: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(tree(tmp_path, **filters))


def test_a_name_that_no_row_has_is_an_error(tmp_path: Path) -> None:
    tag(documents(tmp_path, [WORDS]), ["gopher_v2"], name="quality", progress=False)
    with pytest.raises(ConfigError, match="no row has an attribute 'gopher_v2__words'"):
        mix(read_config(tree(tmp_path, keep=["gopher_v2.words > 1"])), workers=1, progress=False)


@pytest.mark.parametrize("sets", [["quality"], [], ["gone"]])
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_without_its_tagger_names_the_command(name: str, sets: list[str], tmp_path: Path) -> None:
    """Nothing else helps: 'allow_missing' would disable the rules, and without attributes they would do nothing."""
    paths = documents(tmp_path, [WORDS * 5])
    tag(paths, ["char_length_v1"], name="quality", workers=1, progress=False)
    config = tree(tmp_path, presets=[name])
    config["streams"][0]["attributes"] = sets
    tagger = PRESETS[name][0].partition(".")[0]
    with pytest.raises(FeedmillError) as error:
        mix(read_config(config), workers=1, progress=False)
    assert f'feedmill tag "{tmp_path}/documents/*" -t {tagger}' in str(error.value)
    assert "allow_missing" not in str(error.value)


def test_presets_compute_the_attributes_that_they_need(tmp_path: Path) -> None:
    first, second = documents(tmp_path / "a", [WORDS * 5, WORDS * 9]), documents(tmp_path / "b", [WORDS * 5])
    given, out, presets = [f"{tmp_path}/a", f"{tmp_path}/b"], f"{tmp_path}/kept", ["gopher", "duplicates"]
    gone = tmp_path / "b/attributes"

    planned = filter_documents(given, out, preset=presets, workers=1, progress=False, dry_run=True)
    assert planned.dry_run is not None and "gopher_v2, dup_documents are not tried" in str(planned.dry_run.warnings)
    assert not gone.exists()

    report = filter_documents(given, out, preset=presets, workers=1, progress=False, allow_empty=True)
    assert report.computed == ["gopher_v2", "dup_documents"] == report.as_dict()["computed"]
    assert report.streams[0].counts.matched["keep dup_documents < 1"] == 1, "the copy in another dataset"
    again = filter_documents(given, out, preset=presets, workers=1, progress=False, allow_empty=True)
    assert not again.computed and again.streams[0].finished_before == 1

    for path in sorted(gone.rglob("*.jsonl*")):  # as after a kill: some files have their attributes
        path.unlink()
    resumed = filter_documents(given, out, preset=presets, workers=1, progress=False, allow_empty=True)
    assert resumed.computed == report.computed and resumed.streams[0].counts == report.streams[0].counts
    assert first and second


def test_duplicates_are_those_of_the_sets_beside_the_documents(tmp_path: Path) -> None:
    paths = documents(tmp_path, [WORDS * 5, WORDS * 5, "another text " * 30])
    dedupe(paths, near=True, progress=False)
    report = filter_documents(paths, f"{tmp_path}/kept", preset="duplicates", workers=1, progress=False)
    assert not report.computed and dict(report.streams[0].counts.dropped) == {"keep dup_near < 1": 1}
    with pytest.raises(ConfigError, match=r"write keep: \[dup_documents < 1\]"):
        read_config(tree(tmp_path, presets=["duplicates"]))


def test_a_part_of_a_job_array_computes_no_attributes(tmp_path: Path) -> None:
    paths = documents(tmp_path, [WORDS * 5])
    with PartEngine(1, 2), pytest.raises(ConfigError, match="-t gopher_v2'"):
        filter_documents(paths, f"{tmp_path}/kept", preset="gopher", progress=False)


def test_taggers_that_have_not_run_are_in_one_command(tmp_path: Path) -> None:
    paths = documents(tmp_path, [WORDS * 5])
    tag(paths, ["c4_v2"], name="quality", workers=1, progress=False)
    with pytest.raises(ConfigError, match="-t fineweb_v1 -t gopher_v2'"):
        mix(read_config(tree(tmp_path, presets=["c4", "gopher", "fineweb"])), workers=1, progress=False)
    with pytest.raises(ConfigError, match="Did you mean"):  # the tagger ran: a wrong kind
        mix(read_config(tree(tmp_path, keep=["c4_v2.line_cuont < 9"])), workers=1, progress=False)


def test_errors_count_the_users_own_rules(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"filter\.keep\[1\]: 'b = 1'"):
        read_config(tree(tmp_path, presets=["gopher"], keep=["a < 1", "b = 1"]))


def test_both_counts_of_a_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = documents(tmp_path, [WORDS * n for n in range(1, 8)])
    tag(paths, ["gopher_v2"], name="quality", workers=1, progress=False)
    rules = ["gopher_v2.word_count >= 30", "gopher_v2.word_count >= 90", "gopher_v2.word_count < 9999"]
    report = mix(read_config(tree(tmp_path, keep=rules)), workers=1, progress=False)
    counts = report.streams[0].counts
    whole = [f"keep quality__gopher_v2__{rule.partition('.')[2]}" for rule in rules]
    assert [counts.dropped[rule] for rule in whole] == [1, 3, 0]
    assert [counts.matched[rule] for rule in whole] == [1, 4, 0]
    again = mix(read_config(tree(tmp_path, keep=rules)), workers=1, progress=False)
    assert again.streams[0].counts == counts
    show_dropped(counts)
    assert capsys.readouterr().out.splitlines() == [
        "  dropped 4 by keep quality__gopher_v2:",
        "    3 by word_count >= 90 (4 alone): d1, d2, d3",
        "    1 by word_count >= 30: d0",
        "    0 by word_count < 9999",
    ]


@pytest.mark.parametrize(("wrong", "right"), [("stream", "streams"), ("Streams", "streams"), ("strems", "streams")])
def test_a_misspelled_list_of_streams(wrong: str, right: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{wrong}.*{right}|{right}.*{wrong}"):
        read_config({wrong: tree(tmp_path)["streams"]})


def test_a_fraction_of_gopher_above_one_is_that_of_the_reference() -> None:
    """Dolma divides the characters of lines, with blanks, by those of words: see docs/internals/tagging.md."""
    spans = registry.create("gopher_v2").tag(Batch([RowWithMetadata("", "a b c\na b c", metadata={})]))
    row = dict(zip([spans.kinds[kind] for kind in spans.kind.tolist()], spans.score.tolist(), strict=True))
    assert row["fraction_of_characters_in_duplicate_lines"] == 10 / 6


def test_dolmas_configuration_has_no_short_rules(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown option"):
        read_config(tree(tmp_path, keep=["x < 1"]), dolma=True)


def test_signals_of_fineweb() -> None:
    def scores(text: str) -> list[float]:
        found = registry.create("fineweb_v1").tag(Batch([RowWithMetadata("a", text, metadata={})]))
        return [float(score) for score in found.score]

    long = "a line that is longer than thirty characters"
    assert scores(f"{long}.\n\n{long}\nshort?\nshort?\n") == [3 / 4, 2 / 4, 6 / (2 * len(long) + 13), 5 / 18]
    assert scores(f"{long}。") == [1.0, 0.0, 0.0, 0.0]
    assert scores(" \n ") == [0.0, 0.0, 0.0, 1.0]
