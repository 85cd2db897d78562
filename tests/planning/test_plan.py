"""The plan: positions to samples and back, in bulk, with a report and a fingerprint that names what changed."""

import json
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from feedmill.errors import ConfigError, NotFound
from feedmill.planning.nodes import Blend, Concat, Leaf, Located, Repeat, Shuffle, Subset
from feedmill.planning.nodes.base import unique_names
from feedmill.planning.orders import Nanoset
from feedmill.planning.plan import Plan
from helpers.number_dataset import Numbered, texts


def blended(seed: int = 7, docs: int = 100, weights: tuple = (0.7, 0.3), version: str = "1") -> Plan:
    return Plan.over([Numbered("d/docs", docs), Numbered("d/code", 40, version)], weights, seed=seed)


def test_read_gives_the_samples_in_the_order_of_the_positions() -> None:
    plan = blended()
    positions = np.array([999, 3, 3, 50, 0, 10**12])
    located = plan.locate(positions)
    names = ["d/docs", "d/code"]
    expected = [f"{names[s]}:{i}" for s, i in zip(located.source, located.index, strict=True)]
    assert texts(plan.read(positions)) == expected
    for dataset in plan.sources:
        assert len(dataset.reads) == 1 and dataset.reads[0] == sorted(dataset.reads[0])
    assert plan.read([]) == []


def test_reading_from_many_threads_is_reading_from_one() -> None:
    plan = blended()
    batches = [np.arange(k, k + 32) for k in range(0, 3200, 32)]
    with ThreadPoolExecutor(8) as pool:
        together = [texts(samples) for samples in pool.map(plan.read, batches)]
    assert together == [texts(blended().read(batch)) for batch in batches]


def test_one_source_gives_each_sample_once_per_epoch_in_a_new_order() -> None:
    plan = Plan.over(Numbered("docs", 600), epochs=3, seed=1)
    assert len(plan) == plan.length == 1800
    index = plan.locate(np.arange(1800)).index.reshape(3, 600)
    assert (np.sort(index, axis=1) == np.arange(600)).all()
    assert not (index[0] == index[1]).all()
    stored = Plan.over(Numbered("docs", 600), shuffle="none").locate(np.arange(1200)).index
    assert np.array_equal(stored, np.tile(np.arange(600), 2))


def test_several_sources_without_weights_are_shuffled_as_one() -> None:
    plan = Plan.over([Numbered("a", 30), Numbered("b", 70)], shuffle="global", epochs=1)
    located = plan.locate(np.arange(100))
    assert Counter(located.source.tolist()) == {0: 30, 1: 70}
    assert 0 < (located.source[:50] == 0).sum() < 30


def test_a_blend_gives_each_source_its_share_and_keeps_its_epochs() -> None:
    located = blended().locate(np.arange(1000))
    assert Counter(located.source.tolist()) == {0: 700, 1: 300}
    assert located.epoch[located.source == 0].max() == 6 and located.epoch[located.source == 1].max() == 7


def test_the_same_data_set_twice_comes_in_two_orders() -> None:
    docs = Numbered("docs", 200)
    plan = Plan.over([docs, docs], [1, 1], shuffle="global")
    assert plan.names == ["docs", "docs-2"]
    index = plan.locate(np.arange(400)).index
    assert (index[0::2] == index[1::2]).mean() < 0.05


def test_positions_are_all_and_only_those_of_the_sample() -> None:
    plan = blended()
    located = plan.locate(np.arange(2000))
    for source, index in ((0, 17), (1, 39), ("code", 0)):
        number = plan.names.index(source) if isinstance(source, str) else source
        expected = np.flatnonzero((located.source == number) & (located.index == index))
        assert np.array_equal(plan.positions(source, index, within=2000), expected)
    assert len(plan.positions("docs", 5, within=0)) == 0


def test_positions_follow_subsets_and_mixtures_of_mixtures() -> None:
    a, b, c = Numbered("a", 50), Numbered("b", 20), Numbered("c", 9)
    inner = Repeat(Shuffle(Concat([Subset(Leaf(0, 50), 10, 30), Repeat(Leaf(1, 20), 2)]), 5), 2)
    plan = Plan(Blend([Repeat(inner), Repeat(Leaf(2, 9))], [0.8, 0.2]), [a, b, c], ["a", "b", "c"])
    located = plan.locate(np.arange(900))
    for source, index in ((0, 9), (0, 10), (0, 29), (0, 30), (1, 3), (2, 8)):
        expected = np.flatnonzero((located.source == source) & (located.index == index))
        assert np.array_equal(plan.positions(source, index, within=900), expected)


def test_what_is_not_there_is_named() -> None:
    plan = Plan.over(Numbered("docs", 10), epochs=2)
    for positions in ([-1], [20], [3, 2**62], np.array([2**63], np.uint64)):
        with pytest.raises(NotFound, match="there is no position"):
            plan.locate(positions)
    for positions in ([0.5], [[1, 2]], ["a"]):
        with pytest.raises(ConfigError, match="1-D integer array"):
            plan.locate(positions)
    with pytest.raises(NotFound, match=r"no source 'doc'.*Its sources: docs"):
        plan.positions("doc", 1)
    with pytest.raises(NotFound, match="no sample 10"):
        plan.positions(0, 10)
    with pytest.raises(ConfigError, match="endless"):
        blended().positions(0, 1)
    with pytest.raises(ConfigError, match="21 samples are requested, the plan has 20"):
        plan.report(21)
    with pytest.raises(TypeError, match="endless"):
        len(blended())


def test_a_plan_that_does_not_fit_its_sources_is_refused() -> None:
    docs = Numbered("docs", 10)
    for node, sources, names in (
        (Leaf(0, 10), [], []),
        (Leaf(1, 10), [docs], ["docs"]),
        (Leaf(0, 11), [docs], ["docs"]),
        (Concat([Leaf(0, 10), Leaf(1, 10)]), [docs, docs], ["docs", "docs"]),
    ):
        with pytest.raises(ConfigError):
            Plan(node, sources, names)
    with pytest.raises(ConfigError, match="no samples"):
        Plan.over(Numbered("none", 0))
    with pytest.raises(ConfigError, match="a blend has no epochs"):
        Plan.over([docs, docs], [1, 1], epochs=3)
    assert Plan.over([docs], [0.5], epochs=2.5).length == 25
    with pytest.raises(ConfigError, match="unknown shuffle 'globl'"):
        Plan.over(docs, shuffle="globl")


def capped(length: int | None, cap: int = 3) -> Plan:
    docs, code = Numbered("docs", 100), Numbered("code", 1000)
    streams = [Repeat(Shuffle(Leaf(0, 100), 1), max_repeats=cap, name="docs"), Repeat(Leaf(1, 1000))]
    return Plan(Blend(streams, [0.7, 0.3], length=length), [docs, code], ["docs", "code"])


def test_max_repeats_bounds_an_endless_plan_exactly() -> None:
    plan = capped(None)
    located = plan.locate(np.arange(plan.length))
    assert located.epoch[located.source == 0].max() == 2
    assert (located.source == 0).sum() == 300
    beyond = capped(None, cap=4).locate(np.array([plan.length]))
    assert beyond.source[0] == 0 and beyond.epoch[0] == 3  # the very next position would be the fourth time


def test_max_repeats_refuses_a_longer_plan_with_the_arithmetic() -> None:
    fits = capped(None).length
    assert capped(fits).length == fits
    with pytest.raises(ConfigError, match=r"500 samples of the plan draw 350 from it.*3 x 100 samples = 300") as error:
        capped(500)
    assert f"'samples: {fits}'" in str(error.value) and "max_repeats to 4" in str(error.value)
    assert error.value.record == "docs"


def test_max_repeats_counts_through_everything_above() -> None:
    inner = Repeat(Shuffle(Leaf(0, 10), 1), 2, max_repeats=5, name="docs")
    plan = Plan(
        Repeat(Shuffle(Concat([inner, Leaf(1, 7)]), 2)), [Numbered("docs", 10), Numbered("b", 7)], ["docs", "b"]
    )
    # An epoch of the row gives docs twice; of the third epoch, which would be the fifth and sixth, not all may come.
    assert plan.length == 2 * 27
    assert plan.locate(np.arange(plan.length)).epoch.max() == 3


def test_report_counts_what_is_drawn() -> None:
    plan = blended()
    report = plan.report(samples=1234)
    located = plan.locate(np.arange(1234))
    assert [source.drawn for source in report.sources] == np.bincount(located.source).tolist()
    docs = report.as_dict()["sources"][0]
    assert docs == {
        "name": "docs",
        "samples": 100,
        "used": 100,
        "weight_asked": 0.7,
        "weight_realised": 0.7,
        "drawn": docs["drawn"],
        "exact": True,
        "repeats": docs["drawn"] / 100,
        "tokens": None,
        "token_share": None,
        "loss_tokens": None,
        "loss_share": None,
        "target_repeats": None,
    }
    assert json.loads(json.dumps(report.as_dict()))["total"] == 1234
    assert str(report).splitlines() == [
        "1,234 samples, from 2 sources",
        "source  samples  used     asked  realized  drawn  repeats",
        "docs        100   100  70.0000%  70.0000%    864     8.64",
        "code         40    40  30.0000%  30.0000%    370     9.25",
    ]


def test_report_of_an_endless_plan_draws_nothing() -> None:
    report = blended().report()
    assert report.length is None and report.total is None
    assert [source.drawn for source in report.sources] == [None, None]
    assert "an endless plan" in str(report)


def test_report_says_where_realised_weights_differ() -> None:
    plan = blended(weights=("0.3333333333", "0.6666666666"))
    docs = plan.report().sources[0]
    assert docs.asked == docs.realized  # both normalize to 1/3
    plan = blended(weights=("1", "1e-30"))
    code = plan.report().sources[1]
    assert code.asked != code.realized and abs(code.asked - code.realized) < 1e-15


def test_report_marks_expected_numbers() -> None:
    plan = Plan.over([Numbered("a", 30), Numbered("b", 70)], epochs=2)
    whole, cut = plan.report(200), plan.report(150)
    assert [(s.drawn, s.exact) for s in whole.sources] == [(60, True), (140, True)]
    assert [(s.drawn, s.exact) for s in cut.sources] == [(45, False), (105, False)]
    assert "≈45" in str(cut) and "≈" not in str(whole)


def test_report_knows_subsets_and_nested_weights() -> None:
    inner = Blend([Repeat(Subset(Leaf(0, 50), 10, 20)), Repeat(Leaf(1, 20))], [1, 3])
    plan = Plan(Blend([inner, Repeat(Leaf(2, 9))], [0.8, 0.2]), [Numbered(n, s) for n, s in SIZES], ["a", "b", "c"])
    a, b, c = plan.report(1000).sources
    assert (a.used, a.samples, float(a.asked)) == (10, 50, 0.2)
    assert [s.drawn for s in (a, b, c)] == [200, 600, 200]
    assert a.repeats == 20


SIZES = [("a", 50), ("b", 20), ("c", 9)]


def test_the_fingerprint_is_of_the_order_and_the_data() -> None:
    assert blended().fingerprint == blended().fingerprint
    others = [blended(seed=8), blended(docs=101), blended(weights=(0.6, 0.4)), blended(version="2")]
    assert len({plan.fingerprint for plan in [blended(), *others]}) == 5
    # A longer run has the same order.
    docs = Numbered("docs", 10)
    assert len({Plan.over(docs, epochs=epochs).fingerprint for epochs in (1, 2, None)}) == 1
    assert capped(100).fingerprint == capped(None).fingerprint


def test_the_fingerprint_of_many_sources_asks_each_node_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    identity = Nanoset.identity
    monkeypatch.setattr(Nanoset, "identity", lambda node: asked.append(node) or identity(node))
    plan = Plan(
        Nanoset([Leaf(i, 3) for i in range(40)]), [Numbered(str(i), 3) for i in range(40)], list(map(str, range(40)))
    )
    assert len(plan.fingerprints) == 2 + 2 * 40 and len(asked) == 1


def test_names_are_made_unique() -> None:
    assert unique_names(["a", "a-2", "a", "", "a", "source", "a-2"]) == [
        "a",
        "a-2",
        "a-3",
        "source",
        "a-4",
        "source-2",
        "a-2-2",
    ]
    assert unique_names(["x"] * 20_000)[-1] == "x-20000"


def test_a_change_is_named_exactly() -> None:
    old = json.loads(json.dumps(blended().fingerprints))
    assert blended().explain_change(old) == []
    assert blended(seed=8).explain_change(old) == ["seed was 7, is now 8"]
    assert blended(version="2").explain_change(old) == [
        'data of code was 40 samples [40, "1"], is now 40 samples [40, "2"]'
    ]
    weights = blended(weights=(0.6, 0.4)).explain_change(old)
    assert len(weights) == 2 and "weight 7/10" in weights[0] and "weight 3/5" in weights[0]
    more = Plan.over([*blended().sources, Numbered("d/new", 5)], [0.7, 0.2, 0.1], seed=7).explain_change(old)
    assert "source new is new" in more and "data of new is new" in more
    less = Plan.over(blended().sources[:1], [1], seed=7).explain_change(old)
    assert "source code is gone" in less


def test_a_plan_prints_as_a_tree() -> None:
    assert str(blended()).splitlines() == [
        "plan, endless, seed 7",
        "└─ blend 7/10 : 3/10",
        "   ├─ docs: 100 samples, shuffle block 256 x 16, repeated",
        "   └─ code: 40 samples, shuffle block 256 x 16, repeated",
    ]
    assert "endless, 2 sources" in repr(blended())


def test_nodes_cross_process_borders() -> None:
    node = blended().node
    again = pickle.loads(pickle.dumps(node))
    assert np.array_equal(again.locate(np.arange(100)).index, node.locate(np.arange(100)).index)


def test_positions_of_an_endless_plan_end_with_64_bits() -> None:
    plan = Plan.over([Numbered("a", 10), Numbered("b", 20)], [1, 2])
    last = 2**63 - 2
    assert [sample.key for sample in plan.read([last - 1, last])] == [
        str(index) for index in plan.locate([last - 1, last]).index
    ]
    with pytest.raises(NotFound, match="no position 9223372036854775807"):
        plan.read([last + 1])


def test_a_sample_that_is_never_reached_is_not_found() -> None:
    # Its source has more samples than 64 bits of positions ever draw: the way back must not wrap around.
    for weights in ([1, "1e-12"], [*[1, 2, 5, 1, 5, 5, 2, 3, 1, 5, 2, 8.000001], "1e-12"]):
        leaves = [Repeat(Leaf(i, 10)) for i in range(len(weights) - 1)]
        node = Blend([*leaves, Repeat(Leaf(len(leaves), 10**12))], weights)
        index = np.array([0, 5, 10**8, 10**11, 5 * 10**11 + 1])
        located = Located(np.full(5, len(leaves), np.int32), index, np.zeros(5, np.int64))
        positions, _ = node.positions(located)
        assert (positions[2:] == -1).all() and (positions[:2] >= 0).all()
        assert np.array_equal(node.locate(positions[:2]).index, index[:2])


def test_a_budget_ends_with_64_bits() -> None:
    plan = Plan.over([Numbered("a", 10), Numbered("b", 20)], [1, 2])
    assert plan.report(2**63 - 1).total == 2**63 - 1
    with pytest.raises(ConfigError, match="9,223,372,036,854,775,808 samples are requested, the plan has"):
        plan.report(2**63)


def test_too_many_occurrences_are_refused_with_their_number() -> None:
    plan = Plan.over([Numbered("a", 10), Numbered("b", 20)], [1, 2])
    with pytest.raises(ConfigError, match=r"contain sample 3 of a up to 333,333,333,334 times"):
        plan.positions("a", 3, 10**13)
