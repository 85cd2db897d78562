"""Going on with another skip list or with data that grew: what is allowed, what it does, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError
from feedmill.indexing.prepare import prepare
from feedmill.loading.loader import Loader
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from feedmill.samples.open import open as open_dataset
from helpers.durations import examples
from helpers.number_dataset import Growing, Numbered
from helpers.tars import make_shards

RECIPE = "seed: 3\nsamples: 600\n{skip}blend:\n- {{path: docs, weight: 0.7}}\n- {{path: code, weight: 0.3}}\n"


def planned(skip: str = "", docs: Any = None) -> Plan:
    sources = {"docs": docs or Numbered("docs", 100), "code": Numbered("code", 40)}
    said = f"skip: {skip}\n" if skip else ""
    return Recipe.parse(RECIPE.format(skip=said)).plan(lambda path, **_: sources[path.rpartition("/")[2]])


def take(plan: Plan, count: int, state: dict | None = None, **flags: bool) -> tuple[list[str], dict]:
    """The next `count` samples after a state, and the state then."""
    loader = Loader(plan, 1, output="samples")
    if state is not None:
        loader.load_state_dict(json.loads(json.dumps(state)), **flags)
    out, batches = [], iter(loader)
    while len(out) < count and loader.position < len(plan):
        out += [sample.raw("txt").decode() for sample in next(batches)]
    state = loader.state_dict()
    assert len(json.dumps(state)) < 1024
    return out, state


@cache
def whole() -> list[str]:
    return take(planned(), 600)[0]


lists = st.lists(st.integers(0, 599), max_size=6, unique=True)


@given(lists, lists, st.integers(0, 590))
@settings(max_examples=examples(25), deadline=None)
def test_another_skip_list_takes_effect_from_here_on(before: list[int], after: list[int], count: int) -> None:
    """Whatever the lists: what was seen stays seen, and what follows is all the rest but what the new list names."""
    seen, state = take(planned(str(before) if before else ""), count)
    kept = [p for p in range(600) if p not in before]
    assert seen == [whole()[p] for p in kept[:count]]
    last = kept[count - 1] if count else -1
    plan = planned(str(after) if after else "")
    more, _ = take(plan, 600, state, allow_skip=True)
    assert more == [whole()[p] for p in range(last + 1, 600) if p not in after]


def test_another_skip_list_is_refused_without_the_flag() -> None:
    _, state = take(planned(), 10)
    with pytest.raises(ConfigError, match=r"skip was nothing, is now 20.*load_state_dict\(state, allow_skip=True\)"):
        take(planned("[20]"), 1, state)
    _, state = take(planned("[20]"), 10)
    with pytest.raises(ConfigError, match=r"skip was 20, is now nothing.*allow_skip=True"):
        take(planned(), 1, state, allow_append=True)
    with pytest.raises(ConfigError, match=r"data of docs was 100 .*Resume with the recipe"):
        take(planned(docs=Numbered("docs", 100, "2")), 1, state, allow_skip=True)


def test_data_that_grew_goes_on_in_the_order_of_the_grown_data() -> None:
    old, new = planned(docs=Growing("docs", 100)), planned(docs=Growing("docs", 130))
    seen, state = take(old, 100)
    with pytest.raises(ConfigError, match=r"docs grew from 100 to 130 samples.*allow_append=True"):
        take(new, 1, state)
    with pytest.raises(ConfigError, match="docs grew from 100"):
        take(new, 1, state, allow_skip=True)
    more, _ = take(new, 500, state, allow_append=True)
    assert more == take(new, 600)[0][100:]  # the stream is the new plan's, from the same position on
    code = [text for text in seen + more if text.startswith("code")]
    assert code == [text for text in whole() if text.startswith("code")]  # who did not grow continues where it was
    docs = [text for text in more if text.startswith("docs")]
    # 70 of 130 are drawn; what is left of that epoch, and each epoch after it, is of different samples
    assert len(set(docs[:60])) == 60 and sorted(set(docs[60:190])) == sorted(f"docs:{i}" for i in range(130))


def test_data_read_in_stored_order_grows_without_loss_or_repetition() -> None:
    text = "source: {path: docs}\nshuffle: none\nepochs: 1\n"
    old, new = (Recipe.parse(text).plan(lambda *_, n=n, **__: Growing("docs", n)) for n in (50, 80))
    seen, state = take(old, 45)
    more, _ = take(new, 100, state, allow_append=True)
    assert seen + more == [f"docs:{i}" for i in range(80)]


def test_growth_and_another_skip_list_together() -> None:
    _, state = take(planned(docs=Growing("docs", 100)), 100)
    new = planned("[5, 150]", docs=Growing("docs", 130))
    with pytest.raises(ConfigError, match="allow_append=True, allow_skip=True"):
        take(new, 1, state)
    more, _ = take(new, 600, state, allow_append=True, allow_skip=True)
    whole = take(planned(docs=Growing("docs", 130)), 600)[0]
    assert more == whole[100:150] + whole[151:]


def test_what_did_not_only_grow_is_refused() -> None:
    _, state = take(planned(docs=Growing("docs", 100)), 10)
    for docs in (Growing("docs", 130, "2"), Numbered("docs", 130)):
        with pytest.raises(ConfigError, match="first 100 samples of docs cannot be shown to be those of the saved run"):
            take(planned(docs=docs), 1, state, allow_append=True)
    with pytest.raises(ConfigError, match=r"data of docs was 100 samples .* is now 90 samples"):
        take(planned(docs=Growing("docs", 90)), 1, state, allow_append=True)
    other = Recipe.parse(RECIPE.format(skip="").replace("0.7", "0.6")).plan(
        lambda path, **_: Growing("docs", 130) if path.endswith("docs") else Numbered("code", 40)
    )
    with pytest.raises(ConfigError, match="weight 7/10"):
        take(other, 1, state, allow_append=True)


def many(count: int, grown: Sequence[int] = ()) -> Plan:
    data = [Growing(f"source-{i:04}", 20 + i + 5 * (i in grown)) for i in range(count)]
    return Plan.over(data, [1 + i % 7 for i in range(count)], seed=5)


@pytest.mark.parametrize("count", [4, 10, 80, 1000])
def test_of_any_number_of_sources_those_that_grew_are_allowed_and_named(count: int) -> None:
    loader = Loader(many(count), 8)
    for _ in zip(range(3), loader, strict=False):
        pass
    state = json.loads(json.dumps(loader.state_dict()))
    assert len(json.dumps(state)) < 500 + 40 * count
    grown = many(count, [1, count - 1])
    with pytest.raises(ConfigError, match=rf"source-0001 grew from 21 .* source-{count - 1:04} grew .*allow_append"):
        Loader(grown, 8).load_state_dict(state)
    again = Loader(grown, 8)
    again.load_state_dict(state, allow_append=True)
    assert again.position == 24
    data = list(many(count).sources)
    data[2] = Growing("source-0002", 22, "2")
    with pytest.raises(ConfigError, match="saved with: data of source-0002 was 22 samples") as caught:
        Loader(Plan.over(data, [1 + i % 7 for i in range(count)], seed=5), 8).load_state_dict(state, allow_append=True)
    assert "source-0003" not in str(caught.value)
    with pytest.raises(ConfigError, match=rf"data of source-{count - 1:04} is gone") as caught:
        Loader(many(count - 1), 8).load_state_dict(state)
    assert count < 20 or "more changes" in str(caught.value)


def test_the_first_samples_of_real_data_are_recognised(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(f'{{"n": {n}}}\n' for n in range(3000)))
    tars = make_shards(tmp_path / "tars", [4, 3], parts=("json",))
    plain = make_shards(tmp_path / "plain", [4, 3], parts=("json",))
    prepare(str(tars), split_ratio="1,0,0", progress=False)
    before = {path: (len(d := open_dataset(path)), d.fingerprint()) for path in (lines, tars, plain)}
    lines.write_text("".join(f'{{"n": {n}}}\n' for n in range(3500)))
    for root in (tars, plain):
        make_shards(root, [4, 3, 5], parts=("json",))
    prepare(str(tars), split_ratio="1,0,0", progress=False)
    for path, (count, word) in before.items():
        dataset = open_dataset(path)
        assert len(dataset) > count
        assert dataset.fingerprint_of_first(count) == word, path
        assert dataset.fingerprint_of_first(count - 1) != word
        assert dataset.fingerprint_of_first(0) is None and dataset.fingerprint_of_first(10**6) is None
        assert dataset.fingerprint_of_first(len(dataset)) == dataset.fingerprint()
    lines.write_text("".join(f'{{"m":  {n}}}\n' for n in range(3500)))
    assert open_dataset(lines).fingerprint_of_first(3000) != before[lines][1]


def test_skip_lists_of_as_many_positions_are_not_taken_for_one_another() -> None:
    plan = Plan.over(Numbered("docs", 100), epochs=1)
    loader = Loader(plan.skipping([(2, 10)]), 8)
    next(iter(loader))
    other = Loader(plan.skipping([(50, 58)]), 8)
    with pytest.raises(ConfigError, match="skip was"):
        other.load_state_dict(loader.state_dict())
    other.load_state_dict(loader.state_dict(), allow_skip=True)
    assert other.position == 16
