"""The promise on real data: one stream, whatever the ranks, workers and batch sizes, also where they change."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.errors import ConfigError
from feedmill.indexing.prepare import prepare
from feedmill.loading.batches import now
from feedmill.loading.loader import Loader
from feedmill.planning.recipes.recipe import Recipe
from helpers.tars import make_shards

RECIPE = """
seed: 11
blend:
- {path: tars, weight: 0.6, shuffle: {kind: block, block: 4, window: 3}}
- {path: lines.jsonl, weight: 0.3, shuffle: global}
- path: plain
  weight: 0.1
  subset: [1, end]
"""
TOTAL = 240
RANKS, WORKERS, BATCHES = (1, 2, 3, 8), (0, 1, 3), (1, 4, 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("elastic")
    prepare(str(make_shards(top / "tars", [7, 12, 9], parts=("json",))), split_ratio="2,1,0", progress=False)
    make_shards(top / "plain", [6], parts=("json",))
    (top / "lines.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(17)))
    (top / "recipe.yaml").write_text(RECIPE)
    return top


def seen(sample: Any, rng: np.random.Generator) -> dict[str, Any]:
    source = sample.source
    return {
        "from": f"{Path(source.dataset).name}/{source.key}",
        "noise": int(rng.integers(1 << 60)),
        "position": now.position,
    }


def run(folder: Path, ranks: int, workers: int, batch: int, start: dict | None, stop: int) -> tuple[list[str], dict]:
    """What all ranks saw, in the plan's order, from `start` on to at least `stop` samples; and the state there."""
    loaders = []
    for rank in range(ranks):
        plan = Recipe.load(folder / "recipe.yaml").plan()
        loader = Loader(plan, batch, rank=rank, world_size=ranks, workers=workers, transform=seen)
        if start is not None:
            loader.load_state_dict(json.loads(json.dumps(start)))
        loaders.append(loader)
    out: list[str] = []
    streams = [iter(loader) for loader in loaders]
    while loaders[0].position < stop:
        together = []
        for stream in streams:
            found = next(stream)
            rows = zip(found["position"].tolist(), found["from"], found["noise"].tolist(), strict=True)
            together += [(position, f"{name} {noise}") for position, name, noise in rows]
        out += [row for _, row in sorted(together)]
    states = [loader.state_dict() for loader in loaders]
    for loader in loaders:
        loader.close()
    assert all(state == states[0] for state in states)
    assert len(json.dumps(states[0])) < 1024
    return out, states[0]


@pytest.fixture(scope="module")
def stream(folder: Path) -> list[str]:
    out, _ = run(folder, 1, 0, 1, None, TOTAL)
    return out


@pytest.mark.parametrize(("ranks", "workers"), list(product(RANKS, WORKERS)))
def test_every_layout_gives_the_same_stream(ranks: int, workers: int, folder: Path, stream: list[str]) -> None:
    for batch in BATCHES:
        out, _ = run(folder, ranks, workers, batch, None, TOTAL - ranks * batch)
        assert out == stream[: len(out)]


def test_resuming_between_any_two_layouts_gives_the_same_stream(folder: Path, stream: list[str]) -> None:
    layouts = list(product(RANKS, WORKERS, BATCHES))
    chosen = np.random.default_rng(4).permutation(len(layouts))
    state: dict | None = None
    out: list[str] = []
    for number in chosen.tolist():
        ranks, workers, batch = layouts[number]
        more, state = run(folder, ranks, workers, batch, state, len(out) + 1)
        out += more
        if len(out) > TOTAL - 40:
            state, out = None, []
        assert out == stream[: len(out)]


def test_a_changed_mixture_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    _, state = run(folder, 1, 0, 4, None, 8)
    changed = Recipe.parse(RECIPE.replace("0.3", "0.4"), base=str(folder)).plan()
    with pytest.raises(ConfigError, match=r"lines.*0\.4|weight"):
        Loader(changed, 4).load_state_dict(state)


def test_of_many_sources_the_changed_one_is_named(tmp_path: Path) -> None:
    lines = []
    for number in range(30):
        (tmp_path / f"source-with-a-name-{number:02}.jsonl").write_text('{"n": 1}\n' * (number + 1))
        lines.append(f"- {{path: source-with-a-name-{number:02}.jsonl, weight: {number + 1}}}")
    text = "blend:\n" + "\n".join(lines)
    state = Loader(Recipe.parse(text, base=str(tmp_path)).plan(), 4).state_dict()
    assert len(json.dumps(state)) < 1024
    changed = Recipe.parse(text, base=str(tmp_path))
    (tmp_path / "source-with-a-name-07.jsonl").write_text('{"n": 2}\n' * 3)
    with pytest.raises(ConfigError, match=r"data of source-with-a-name-07 was 8 .* now 3 samples") as caught:
        Loader(changed.plan(), 4).load_state_dict(state)
    assert "name-08" not in str(caught.value)
    fewer = Recipe.parse("\n".join(text.splitlines()[:-1]), base=str(tmp_path)).plan()
    with pytest.raises(ConfigError, match=r"data of source-with-a-name-29 is gone"):
        Loader(fewer, 4).load_state_dict(state)
