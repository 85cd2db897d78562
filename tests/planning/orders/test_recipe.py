"""Orders of other tools, asked for in recipes."""

import numpy as np
import pytest

from feedmill.errors import ConfigError
from feedmill.planning.orders import nanoset_index, sampler_indices
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from helpers.number_dataset import Numbered

NANOSET = """
seed: 1234
samples: 70
order: nanoset
blend:
  - {path: d0, weight: 1}
  - {path: d1, weight: 5}
  - {path: d2, weight: 3}
  - {path: d3, weight: 1}
"""
SIZES = {"d0": 8, "d1": 2, "d2": 5, "d3": 5}


def plan(text: str) -> Plan:
    return Recipe.parse(text).plan(lambda path, **_: Numbered(path, SIZES[path.rpartition("/")[2]]))


def test_a_nanoset() -> None:
    whole = plan(NANOSET)
    dataset, sample = nanoset_index([8, 2, 5, 5], [1, 5, 3, 1], 70, 1234)
    located = whole.locate(np.arange(70))
    assert len(whole) == 70 and np.array_equal(located.source, dataset) and np.array_equal(located.index, sample)
    assert [part.drawn for part in whole.report().sources] == np.bincount(dataset).tolist()
    assert set(np.concatenate([whole.positions(2, i) for i in range(5)]).tolist()) == set(np.flatnonzero(dataset == 2))
    assert "nanoset 0.1 : 0.5 : 0.3 : 0.1" in str(whole)


def test_without_weights_and_samples_a_nanoset_is_endless_and_whole() -> None:
    whole = plan("{seed: 1, order: nanoset, blend: [{path: d0}, {path: d1}]}")
    dataset, sample = nanoset_index([8, 2], None, 25, 1)
    located = whole.locate(np.arange(25))
    assert whole.length is None
    assert np.array_equal(located.source, dataset) and np.array_equal(located.index, sample)


def test_a_modalities_run() -> None:
    order = "{kind: modalities, ranks: 3, shuffle: true, epoch: 2, batch_size: 2}"
    whole = plan(f"{{seed: 5, epochs: 2, order: {order}, concat: [{{path: d0}}, {{path: d2}}, {{path: d1}}]}}")
    located = whole.locate(np.arange(30))
    index = located.index + np.array([0, 8, 13])[located.source]
    for rank in range(3):  # two batches of 2 and one of 1 in each epoch
        mine = [index[:15][[2 * rank, 2 * rank + 1, 6 + 2 * rank, 7 + 2 * rank, 12 + rank]]]
        mine += [index[15:][[2 * rank, 2 * rank + 1, 6 + 2 * rank, 7 + 2 * rank, 12 + rank]]]
        for epoch in range(2):
            expected = sampler_indices(15, rank, 3, shuffle=True, seed=5, epoch=2 + epoch)
            assert mine[epoch].tolist() == expected.tolist()


def test_changes_are_named() -> None:
    old = plan(NANOSET).fingerprints
    assert plan(NANOSET.replace("samples: 70", "samples: 90")).fingerprints == old
    assert any("nanoset" in change for change in plan(NANOSET.replace("weight: 5", "weight: 6")).explain_change(old))
    swapped = NANOSET.replace("d2", "d9").replace("d3", "d2").replace("d9", "d3").replace("weight: 3", "weight: 1")
    even = plan(NANOSET.replace("weight: 3", "weight: 1"))
    assert plan(swapped).fingerprint != even.fingerprint  # equal sizes and weights, but another place in the list


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{order: nanoset, blend: [{path: d0}]}", "needs the 'seed'"),
        ("{seed: 1, order: nanoset, source: d0}", "needs a 'blend'"),
        ("{seed: 1, order: {kind: modalities, ranks: 2}, blend: [{path: d0}]}", "needs a 'blend'"),
        ("{seed: 1, order: modalities, source: d0}", "'ranks'"),
        ("{seed: 1, order: {kind: nanoset, ranks: 2}, blend: [{path: d0}]}", "no options"),
        ("{seed: 1, order: {kind: modalities, rank: 2}, source: d0}", "did you mean 'ranks'"),
        ("{seed: 1, order: other, source: d0}", "order.kind"),
        ("{seed: 1, order: nanoset, shuffle: block, blend: [{path: d0}]}", "'order' replaces 'shuffle'"),
        ("{seed: 1, order: nanoset, blend: [{path: d0, max_repeats: 2}]}", "'order' replaces 'shuffle'"),
        ("{seed: -1, order: nanoset, blend: [{path: d0}]}", "seed -1"),
        ("{seed: 1, order: {kind: modalities, ranks: 2, skip: 9}, source: d0}", "skip 9 of 8"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        plan(text)
    assert "recipe:1" in str(caught.value)
