"""Skip lists: what is named is gone, nothing else is, and what comes before stays where it was."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError, FeedmillError
from feedmill.planning.nodes import Blend, Leaf, Repeat, Shuffle, Skip
from feedmill.planning.nodes.skip import Gaps
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.fields import SkipModel
from feedmill.planning.recipes.recipe import Recipe
from feedmill.planning.recipes.skip import read_entries, skip_lines
from helpers.durations import examples
from helpers.lineage_data import TOKENIZER
from helpers.number_dataset import Numbered

SIZES = {"docs": 100, "code": 40}
BLEND = "seed: 3\nsamples: 1000\n{skip}blend:\n- {{path: docs, weight: 0.7}}\n- {{path: code, weight: 0.3}}\n"


def planned(skip: str = "", text: str = BLEND) -> Plan:
    said = f"skip: {skip}\n" if skip else ""
    return Recipe.parse(text.format(skip=said)).plan(lambda path, **_: Numbered(path, SIZES[path.rpartition("/")[2]]))


def stream(plan: Plan) -> list[tuple[int, int, int]]:
    located = plan.locate(np.arange(len(plan)))
    return list(zip(located.source.tolist(), located.index.tolist(), located.epoch.tolist(), strict=True))


WHOLE = stream(planned())

ranges = st.tuples(st.integers(0, 999), st.integers(1, 60)).map(lambda r: [r[0], min(r[0] + r[1], 1000)])
entries = st.one_of(
    st.integers(0, 999),
    ranges,
    st.builds(
        lambda source, indices, since: {"source": source, "indices": indices, "since": since},
        st.sampled_from(["docs", "code"]),
        st.lists(st.integers(0, 39), min_size=1, max_size=3),
        st.integers(0, 1000),
    ),
)


def named(skip: list, position: int) -> bool:
    """Whether a list names a position, read off the list itself."""
    source, index, _ = WHOLE[position]
    for entry in skip:
        if isinstance(entry, dict):
            same = ["docs", "code"][source] == entry["source"] and index in entry["indices"]
            if same and position >= entry["since"]:
                return True
        elif entry == position or (isinstance(entry, list) and entry[0] <= position < entry[1]):
            return True
    return False


@given(st.lists(entries, min_size=1, max_size=5))
@settings(max_examples=examples(60), deadline=None)
def test_what_is_named_is_gone_and_the_rest_is_as_it_was(skip: list) -> None:
    plan = planned(str(skip))
    kept = [p for p in range(1000) if not named(skip, p)]
    assert stream(plan) == [WHOLE[p] for p in kept]
    first = min((p for p in range(1000) if named(skip, p)), default=1000)
    assert stream(plan)[:first] == WHOLE[:first]
    located = plan.locate(np.arange(len(plan)))
    assert np.array_equal(plan.node.positions(located)[0], np.arange(len(plan)))
    drawn = [source.drawn for source in plan.report().sources]
    assert drawn == np.bincount(located.source, minlength=2).tolist()
    some = plan.report(len(plan) // 3)
    assert [s.drawn for s in some.sources] == np.bincount(located.source[: len(plan) // 3], minlength=2).tolist()


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 40)), max_size=8))
def test_counting_skipped_positions(found: list) -> None:
    ranges = [(first, first + size) for first, size in found]
    node = Gaps(ranges, 2**62)
    gone = sorted({p for first, stop in ranges for p in range(first, stop)})
    kept = [p for p in range(600) if p not in gone]
    assert node.count == len(gone)
    assert node.nth(np.arange(len(gone))).tolist() == gone
    assert [node.skipped(p) for p in range(500)] == [sum(g < p for g in gone) for p in range(500)]
    assert [node.after(n) for n in range(100)] == [0] + [kept[n - 1] + 1 for n in range(1, 100)]


def test_a_sample_that_is_skipped_does_not_come_again() -> None:
    plan = planned('[{source: docs, keys: [7, "9"]}]')
    assert len(plan.positions("docs", 7)) == len(plan.positions("docs", 9)) == 0
    assert len(plan.positions("docs", 8)) == len(planned().positions("docs", 8))


def test_a_longer_run_skips_the_same() -> None:
    longer = planned("[5, {source: docs, keys: [7]}]", BLEND.replace("1000", "3000"))
    short = planned("[5, {source: docs, keys: [7]}]")
    assert short.fingerprint == longer.fingerprint
    assert stream(longer)[: len(short)] == stream(short)


def test_an_endless_plan_can_skip_positions() -> None:
    plan = planned("[5, [100, 200]]", BLEND.replace("samples: 1000\n", ""))
    assert plan.length is None
    assert stream_of(plan, 800) == [entry for p, entry in enumerate(WHOLE) if p != 5 and not 100 <= p < 200][:800]


def stream_of(plan: Plan, count: int) -> list[tuple[int, int, int]]:
    located = plan.locate(np.arange(count))
    return list(zip(located.source.tolist(), located.index.tolist(), located.epoch.tolist(), strict=True))


def test_max_repeats_still_bounds_the_plan() -> None:
    capped = Blend([Repeat(Shuffle(Leaf(0, 100), 1), max_repeats=3), Repeat(Leaf(1, 1000))], [0.7, 0.3])
    sources, names = [Numbered("docs", 100), Numbered("code", 1000)], ["docs", "code"]
    whole = Plan(capped, sources, names)
    plan = Plan(Skip(capped, [(3, 5), (10**6, 10**6 + 1)]), sources, names)
    assert plan.length == len(whole) - 2
    assert plan.locate([plan.length - 1]).epoch[0] == whole.locate([len(whole) - 1]).epoch[0]


def test_the_fingerprint_covers_the_list_and_not_how_it_is_written() -> None:
    plain, one, other = planned(), planned("[5, 7]"), planned("[[7, 8], 5]")
    assert plain.fingerprint != one.fingerprint == other.fingerprint != planned("[5]").fingerprint
    assert one.explain_change(plain.fingerprints) == ["skip is new"]
    assert one.explain_change(planned("[5]").fingerprints) == ["skip was 5, is now 5, 7"]
    many = planned(str(list(range(0, 900, 3))))
    assert many.skip is not None and many.skip.text.startswith("300 entries (")
    assert many.fingerprint != planned(str(list(range(0, 897, 3)))).fingerprint


def test_the_tree_names_the_list() -> None:
    assert "skip 5, docs: 7 #3 since 9" in str(planned("[5, {source: docs, keys: [7], indices: [3], since: 9}]"))


@pytest.mark.parametrize(
    ("skip", "message"),
    [
        ("[1000]", r"recipe:3: the positions \[1,000, 1,001\) are outside the plan, which has 1,000"),
        ("[[3, 3]]", r"recipe:3: skip\[0\]: the range \[3, 3\) is empty"),
        ("[-4]", r"skip\[0\]: skip takes positions from 0"),
        ("[true]", r"skip\[0\]: skip takes positions from 0"),
        ("[[1, 2, 3]]", r"skip\[0\]: skip takes positions from 0"),
        ("[{source: doc, keys: [a]}]", "recipe:3: there is no source 'doc'. Its sources: docs, code"),
        ("[{source: docs, keys: [a]}]", "recipe:3 'a': .*there is no such sample"),
        ("[{source: docs, indices: [100]}]", "recipe:3: .*there is no sample 100"),
        ("[{source: docs, kes: [a]}]", "unknown key 'kes' .did you mean 'keys'"),
        ("[{source: docs}]", "a 'source' needs one of them"),
        ("[{keys: [a]}]", "give a position, a range"),
        ("[{positions: [1, 2], since: 3}]", "'since' applies to samples only"),
        ("[{quarantine: none.jsonl}]", "none.jsonl: there is no such file"),
        ("[{quarantine: none.jsonl, source: docs}]", "give a position, a range"),
        ("[[0, 1000]]", "the skip list removes the whole plan"),
    ],
)
def test_bad_lists_are_refused_with_their_line(skip: str, message: str) -> None:
    with pytest.raises(FeedmillError, match=message):
        planned(skip)


_LINE = b'{"position": %d, "source": "docs", "index": %d}'


def quarantined(tmp_path: Path, content: bytes) -> list[int]:
    (tmp_path / "bad.jsonl").write_bytes(content)
    (entries,) = read_entries([SkipModel(quarantine="bad.jsonl")], tmp_path, planned())
    return [index for entry in entries for index in entry.indices or ()]


@pytest.mark.parametrize(
    ("content", "indices"),
    [
        (b"%s\r\n%s\r\n", [3, 4]),
        (b"%s\n%s", [3, 4]),
        (b"%s \n\n  %s\n\n", [3, 4]),
        (b'%s\n%s\n{"position": 7, "sou', [3, 4]),
        (b'%s\n{"posi\n%s\n', [3, 4]),
        (b'{"position": 7, "sou\r\n%s\r\n%s', [3, 4]),
        (b"", []),
    ],
)
def test_a_quarantine_file_that_went_through_an_editor_loses_no_line(
    tmp_path: Path, content: bytes, indices: list[int]
) -> None:
    given = content % (_LINE % (1, 3), _LINE % (2, 4)) if indices else content
    assert quarantined(tmp_path, given) == indices


@pytest.mark.parametrize("index", [b"3.7", b"-1", b"true", b'"3"', b"null", b"[3]"])
def test_a_number_in_a_quarantine_file_that_is_none_is_refused(tmp_path: Path, index: bytes) -> None:
    good = _LINE % (1, 3)
    with pytest.raises(ConfigError, match=r"bad.jsonl 'line 2': this is not a line of a quarantine file"):
        quarantined(tmp_path, good + b"\n" + good.replace(b"3}", index + b"}") + b"\n")


@pytest.mark.parametrize("data", [b'"abc"', b"[3]", b'["3", "abc"]', b"[3, 4]", b"7"])
def test_a_digest_that_is_none_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"bad.jsonl 'line 1': this is not a line of a quarantine file"):
        quarantined(tmp_path, (_LINE % (1, 3)).replace(b"3}", b'3, "data": %s}\n' % data))


def test_a_quarantined_sample_is_found_again_in_a_dataset_that_has_changed(tmp_path: Path) -> None:
    def keys(samples: list[str], bad: dict[int, str]) -> list[str]:
        folder = tmp_path / f"d{len(list(tmp_path.iterdir()))}"
        fm.write(folder, [{"__key__": key, "txt": key} for key in samples], progress=False)
        lines = [json.dumps({"position": 0, "source": "d", "index": index, "key": key}) for index, key in bad.items()]
        (tmp_path / "bad.jsonl").write_text("\n".join(lines))
        plan = Recipe.parse(
            f"source: {{path: {folder.name}, name: d, split: '*'}}\nepochs: 1\nskip: [{{quarantine: bad.jsonl}}]",
            base=tmp_path,
        ).plan()
        return sorted(sample.key for sample in plan.read(range(len(plan))))

    assert keys(["a", "b", "c", "d"], {2: "c"}) == ["a", "b", "d"]
    assert keys(["b", "c", "d"], {2: "c"}) == ["b", "d"]
    assert keys(["b", "c"], {2: "c"}) == ["b"]
    with pytest.raises(ConfigError, match=r"bad.jsonl 'line 2': sample 2 of 'd' is 'd', .* names 'c'"):
        keys(["a", "b", "d"], {1: "b", 2: "c"})


@pytest.mark.parametrize(
    "cut", [b'{"source": "docs", "ind', b'{"source": "docs"}', b"3", b"[]", b'{"source": "docs", "index": 3']
)
def test_a_list_that_no_loader_wrote_is_not_read_in_part(tmp_path: Path, cut: bytes) -> None:
    """A sample that must be forgotten would be trained on, as the copy of its list was cut short."""
    with pytest.raises(ConfigError, match=r"bad.jsonl 'line 2': this is not a line of a quarantine file"):
        quarantined(tmp_path, b'{"source": "docs", "index": 4}\n' + cut)


def test_numbers_of_samples_in_a_list_count_in_its_data(tmp_path: Path) -> None:
    """The keys of a token file are numbers: in one that was made again, they are those of other documents."""
    folder = tmp_path / "tokens"

    def write(name: str, first: int, last: int) -> None:
        rows = "".join(json.dumps({"text": f"the number {n}"}) + "\n" for n in range(first, last))
        (tmp_path / "rows.jsonl").write_text(rows)
        options = {"formats": ("pbin",), "tokenizer": TOKENIZER, "workers": 1, "progress": False, "overwrite": True}
        fm.tokenize(str(tmp_path / "rows.jsonl"), str(folder / name), **options)

    def numbers() -> list[int]:
        recipe = "source: {path: tokens, name: d}\nepochs: 1\nskip: [{quarantine: gone.jsonl}]"
        plan = Recipe.parse(recipe, base=tmp_path).plan()
        return sorted(sample.source.index for sample in plan.read(range(len(plan))))

    write("a", 0, 6)
    whole = Recipe.parse("source: {path: tokens, name: d}\nepochs: 1", base=tmp_path).plan()
    (tmp_path / "gone.jsonl").write_bytes(skip_lines(whole, [("d", 2), ("d", 3)]))
    assert numbers() == [0, 1, 4, 5]
    write("b", 6, 9)
    assert numbers() == [0, 1, 4, 5, 6, 7, 8]  # it has only grown
    write("a", 1, 7)
    with pytest.raises(ConfigError, match=r"gone.jsonl 'line 1': sample 2 of 'd' may be another one: .* has changed"):
        numbers()


def test_samples_of_an_endless_plan_are_refused() -> None:
    with pytest.raises(ConfigError, match="endless"):
        planned("[{source: docs, keys: [7]}]", BLEND.replace("samples: 1000\n", ""))


def test_a_nested_recipe_has_no_list_of_its_own(tmp_path) -> None:
    (tmp_path / "inner.yaml").write_text("source: docs\nskip: [3]\n")
    with pytest.raises(ConfigError, match=r"inner.yaml:2: .*outermost recipe"):
        Recipe.parse("source: {recipe: inner.yaml}", base=tmp_path).plan(lambda path, **_: Numbered(path, 10))
