"""Fits on swarms of known laws: the best mixture is found, intervals hold, and limits are kept."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.mixture.limits import Limits
from feedmill.mixture.swarm import Swarm, read_swarm
from helpers.durations import needs
from helpers.mixture_data import TOKENS, recipe_file, small_fits, token_files

needs("sklearn")
STAGES: list[dict[str, Any]] = [
    {"tokens": 60_000, "weights": dict.fromkeys(TOKENS, 1)},
    {"weights": dict.fromkeys(TOKENS, 1)},
]


@pytest.fixture(autouse=True)
def fits_are_small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "interval" not in request.node.name and "trees" not in request.node.name:
        small_fits(monkeypatch)


class KnownLaw:
    """Losses of four domains, each ``c + exp(t . weights)``."""

    def __init__(self, seed: int, sources: int, domains: int = 4) -> None:
        generator = np.random.default_rng(seed)
        self.floor = generator.uniform(1.5, 2.5, domains)
        self.slopes = -generator.uniform(0, 0.8, (domains, sources))
        self.slopes[np.arange(domains), generator.permutation(sources)[:domains]] -= generator.uniform(1, 2.5, domains)

    def __call__(self, weights: Any) -> Any:
        return self.floor + np.exp(weights @ self.slopes.T + 0.5)


class Stepped(KnownLaw):
    """A law whose losses fall at once where a source reaches some share: no form describes it."""

    def __init__(self, seed: int, sources: int, domains: int = 4) -> None:
        super().__init__(seed, sources, domains)
        generator = np.random.default_rng([seed, 1])
        self.at, self.falls = generator.uniform(0.05, 0.3, self.slopes.shape), generator.uniform(0, 0.3, (domains, 1))

    def __call__(self, weights: Any) -> Any:
        return super().__call__(weights) - ((weights[:, None] > self.at) * self.falls).sum(axis=2)


def write_losses(folder: Path, swarm: Swarm, values: Any) -> Path:
    path = folder / "losses.csv"
    head = "run," + ",".join(f"loss_{n}" for n in range(values.shape[1]))
    lines = [f"{run},{','.join(map(str, row))}" for run, row in zip(swarm.runs, values.tolist(), strict=True)]
    path.write_text("\n".join([head, *lines]))
    return path


def experiment(folder: Path, law: Any, *, noise: float = 0.0, count: int = 40, **keys: Any) -> tuple[Swarm, Path]:
    recipe = recipe_file(folder, **keys)
    fm.mixture.propose(recipe, folder / "swarm", count=count, target=100_000, max_repeats=4)
    swarm = read_swarm(folder / "swarm")
    losses = law(swarm.weights.reshape(count, -1))
    return swarm, write_losses(folder, swarm, losses + np.random.default_rng(1).normal(0, 1, losses.shape) * noise)


def lowest(law: Any, stages: int) -> float:
    """The lowest mean loss within the limits, by random search from many mixtures: another way than that of `fit`."""
    generator = np.random.default_rng(0)
    caps = np.minimum(4 * np.array(list(TOKENS.values())) / 100_000, 1)
    parts = np.array([1.0]) if stages == 1 else np.array([0.6, 0.4])
    best, value, spread = None, np.inf, 1.0
    for _ in range(60):
        drawn = generator.dirichlet(np.full(4, 0.7), (20_000, stages))
        if best is not None:
            drawn = best + (drawn - best) * spread
            spread *= 0.85
        drawn = drawn[(np.einsum("s,nsd->nd", parts, drawn) <= caps).all(axis=1)]
        losses = law(drawn.reshape(len(drawn), -1)).mean(axis=1)
        if len(losses) and losses.min() < value:
            best, value = drawn[np.argmin(losses)], float(losses.min())
    return value


@pytest.mark.parametrize("stages", [1, 2])
def test_the_best_mixture_of_a_known_law_is_found(tmp_path: Path, stages: int) -> None:
    """Within 2 % of its loss, without noise and with noise of half a percent."""
    law = KnownLaw(stages, 4 * stages)
    best = lowest(law, stages)
    for noise in (0.0, 0.01):
        folder = tmp_path / str(noise)
        swarm, losses = experiment(folder, law, noise=noise, **({"stages": STAGES} if stages == 2 else {}))
        report = fm.mixture.fit(folder / "swarm", losses, folder / "best.yaml")
        proposed = np.array([list(row.values()) for row in report.proposal])
        assert law(proposed.ravel()).mean() <= 1.02 * best, (noise, report)
        assert law(proposed.ravel()).mean() < law(swarm.weights.reshape(40, -1)).mean(axis=1).min()
        assert report.chosen == "law" and report.models["law"]["explained"] > 0.9
        assert report.interval[0] <= report.predicted <= report.interval[1]
        plan = fm.Recipe.load(folder / "best.yaml").plan()
        for source in plan.report(2500).sources:  # samples have 40 tokens
            assert source.drawn * 40 <= 4 * TOKENS[source.name] + 40 * stages


def held(seed: int, domains: int, model: str = "law", kind: type[KnownLaw] = KnownLaw, noise: float = 0.02) -> float:
    """How often the loss of a further run with the proposed mixture lies in its interval; 40 runs, 5 sources, noise.

    The noise of the further run is normal, so that this is known, and not drawn: a third of the trials tell as much.
    """
    from feedmill.mixture.models import fitted, interval_of_best
    from feedmill.mixture.optimum import best, candidates, features

    generator, natural = np.random.default_rng(seed), np.array([[0.5, 0.2, 0.15, 0.1, 0.05]])
    limits = Limits(list("abcde"), np.zeros(5), np.ones(5), 4 * natural[0], np.ones(1), [False], np.full(5, 4.0), 100)
    law = kind(seed, 5, domains)
    mixtures = candidates(limits, natural[None], 40, seed)
    losses = law(mixtures[:, 0]) + generator.normal(0, noise * domains**0.5, (40, domains))
    found = fitted(model, features(limits, mixtures), losses, np.full(domains, 1 / domains), 0)
    centers = np.concatenate([natural[None], mixtures[np.argsort(losses.mean(axis=1))[:4]]])
    proposed = best(found, limits, np.concatenate([mixtures, candidates(limits, centers, 2000, 0)]))
    again = features(limits, np.concatenate([mixtures, candidates(limits, centers, 2000, 1)]))
    _, low, high = interval_of_best(found, features(limits, mixtures), again, features(limits, proposed[None])[0], 0)
    further = NormalDist(law(proposed[:1]).mean(), noise)
    return further.cdf(high) - further.cdf(low)


def test_the_interval_holds() -> None:
    assert np.mean([held(seed, 1) for seed in range(6)]) >= 0.95
    assert np.mean([held(seed, 1 + 3 * (seed % 2), "trees", noise=0.005 * seed) for seed in (1, 4)]) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("domains", "trials"), [(1, 300), (4, 100)])
def test_the_interval_holds_as_often_as_it_says(domains: int, trials: int) -> None:
    assert np.mean([held(1000 + seed, domains) for seed in range(trials)]) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("kind", [KnownLaw, Stepped])
@pytest.mark.parametrize("noise", [0.005, 0.02])
@pytest.mark.parametrize("domains", [1, 4])
def test_the_interval_of_trees_holds_as_often_as_it_says(domains: int, noise: float, kind: type[KnownLaw]) -> None:
    assert np.mean([held(1000 + seed, domains, "trees", kind, noise) for seed in range(100)]) >= 0.95


def test_the_same_inputs_give_the_same_files_and_runs_are_matched_by_name(tmp_path: Path) -> None:
    swarm, losses = experiment(tmp_path, KnownLaw(0, 4), noise=0.01, count=12)
    report = fm.mixture.fit(tmp_path / "swarm", losses, tmp_path / "best.yaml")
    files = {name: (tmp_path / name).read_bytes() for name in ("best.yaml", "best.json")}
    head, *rest = losses.read_text().splitlines()
    losses.write_text("\n".join([head, *reversed(rest)]))
    with pytest.raises(fm.ConfigError, match="file exists"):
        fm.mixture.fit(tmp_path / "swarm", losses, tmp_path / "best.yaml")
    fm.mixture.fit(tmp_path / "swarm", losses, tmp_path / "best.yaml", overwrite=True)
    assert files == {name: (tmp_path / name).read_bytes() for name in files}
    data = json.loads(files["best.json"])
    assert data["kind"] == "feedmill fit" and data["runs"] == 12 and len(data["points"]) == 12
    assert data["proposal"] == report.proposal
    assert sum(data["proposal"][0].values()) == pytest.approx(1)
    recipe = fm.Recipe.load(tmp_path / "best.yaml")
    assert [member.weight for member in recipe.model.blend or []] == list(report.proposal[0].values())
    assert swarm.names == list(report.proposal[0])


def test_recipes_of_proxies_lead_to_that_of_the_large_run(tmp_path: Path) -> None:
    """What is at hand, and the target, are those of the run that the proxies stand for."""
    recipe = recipe_file(tmp_path, proxy={"tokens": 10_000, "of": 100_000})
    proposed = fm.mixture.propose(recipe, tmp_path / "swarm", count=12, max_repeats=4)
    assert proposed.target == 100_000
    assert {one["name"]: one["at_hand"] for one in proposed.sources} == TOKENS
    swarm = read_swarm(tmp_path / "swarm")
    report = fm.Recipe.load(swarm.path("run-001")).plan().report()
    assert report.proxy is not None and (report.proxy.amount, report.proxy.of) == (10_000, 100_000)
    losses = write_losses(tmp_path, swarm, KnownLaw(0, 4)(swarm.weights.reshape(12, -1)))
    fitted = fm.mixture.fit(tmp_path / "swarm", losses, tmp_path / "best.yaml")
    best = fm.Recipe.load(tmp_path / "best.yaml")
    assert best.model.proxy is None and best.model.unit == "tokens" and fitted.target == 100_000
    assert any("'proxy'" in note for note in fitted.notes)


def test_a_source_that_no_run_tried_is_not_proposed(tmp_path: Path) -> None:
    """Shares of nearly 0 say nothing, but the law would find a steep slope in the noise."""
    tokens = {"web": 600_000, "code": 200_000, "tiny": 40}
    recipe = recipe_file(tmp_path, tokens)
    fm.mixture.propose(recipe, tmp_path / "swarm", count=12, target=100_000)
    swarm = read_swarm(tmp_path / "swarm")
    highest = swarm.weights[:, 0, 2].max()
    assert highest < 1e-3
    noise = np.random.default_rng(0).normal(0, 0.01, (12, 1)) - 100 * swarm.weights[:, 0, 2:]
    losses = write_losses(tmp_path, swarm, 2 + np.exp(swarm.weights[:, 0] @ [[0.3], [-1.2], [0]]) + noise)
    report = fm.mixture.fit(tmp_path / "swarm", losses, tmp_path / "best.yaml", model="law")
    assert report.proposal[0]["tiny"] <= highest + 1e-7
    assert any("no larger one is proposed: tiny" in note for note in report.notes)
    assert report.predicted > 2 and report.natural is not None


@pytest.mark.parametrize("stages", [1, 2])
def test_shares_stay_within_those_that_were_tried_unless_asked(tmp_path: Path, stages: int) -> None:
    """The best shares lie beyond them: the loss falls with code alone."""
    recipe = recipe_file(tmp_path, **({"stages": STAGES} if stages == 2 else {}))
    fm.mixture.propose(recipe, tmp_path / "swarm", count=16, target=100_000 if stages == 2 else None)
    swarm = read_swarm(tmp_path / "swarm")
    law = np.exp(-swarm.weights[:, :, 1].mean(axis=1, keepdims=True))
    losses = write_losses(tmp_path, swarm, 2 + law)
    report = fm.mixture.fit(tmp_path / "swarm", losses, tmp_path / "best.yaml", model="law")
    for row in report.proposal:
        for number, share in enumerate(row.values()):
            tried = swarm.weights[:, :, number]
            assert tried.min() - 1e-4 <= share <= tried.max() + 1e-4
    beyond = fm.mixture.fit(tmp_path / "swarm", losses, tmp_path / "beyond.yaml", model="law", beyond_tried=True)
    assert beyond.proposal[0]["code"] > 0.99 > report.proposal[0]["code"] and beyond.predicted < report.predicted
    assert any(note.startswith("the proposal goes beyond") and "code" in note for note in beyond.notes)
    if stages == 1:
        assert any(note.startswith("at the end of the shares that were tried: ") for note in report.notes)
        size = int(min(TOKENS[name] / share for name, share in report.proposal[0].items() if share))
        assert any(f"runs of up to {size:,} tokens repeat no source" in note for note in report.notes)
    with pytest.raises(fm.ConfigError, match="Pass --beyond-tried"):
        fm.mixture.fit(tmp_path / "swarm", losses, tmp_path / "b.yaml", max_share=["web=0", "math=0", "wiki=0"])


def test_trees_propose_within_the_limits(tmp_path: Path) -> None:
    _, losses = experiment(tmp_path, KnownLaw(0, 4), noise=0.01, count=20)
    report = fm.mixture.fit(tmp_path / "swarm", losses, tmp_path / "best.yaml", model="trees", max_repeats=2)
    assert report.chosen == "trees" and all(one["repeats"] <= 2 + 1e-6 for one in report.sources)
    assert all(one["max_repeats"] == 2 for one in report.sources)


def test_few_runs_leave_the_law_out(tmp_path: Path) -> None:
    tokens = {f"s{number}": 4_000 for number in range(9)}
    recipe = recipe_file(tmp_path, tokens)
    fm.mixture.propose(recipe, tmp_path / "swarm", count=10)
    swarm = read_swarm(tmp_path / "swarm")
    losses = write_losses(tmp_path, swarm, KnownLaw(0, 9)(swarm.weights[:, 0]))
    report = fm.mixture.fit(tmp_path / "swarm", losses, tmp_path / "best.yaml")
    assert report.chosen == "trees" and report.models["law"] == {"left_out": "it needs 12 runs"}
    assert any("law was not fitted" in note for note in report.notes)
    with pytest.raises(fm.ConfigError, match="the law cannot be fitted to 10 runs"):
        fm.mixture.fit(tmp_path / "swarm", losses, tmp_path / "b.yaml", model="law")


def test_losses_without_a_pattern_are_said_to_be_a_guess(tmp_path: Path) -> None:
    swarm, losses = experiment(tmp_path, KnownLaw(0, 4), count=10)
    write_losses(tmp_path, swarm, np.random.default_rng(3).normal(3, 0.1, (10, 1)))
    report = fm.mixture.fit(tmp_path / "swarm", losses, tmp_path / "best.yaml")
    assert any("a guess; train more runs" in note for note in report.notes)


def test_a_column_of_one_value_and_other_data_are_noted(tmp_path: Path) -> None:
    """The column changes the proposal by nothing, and the data what its runs mean."""
    law = KnownLaw(0, 4, 2)
    _, losses = experiment(tmp_path, lambda weights: law(weights) * [1, 0], count=12)
    alone = fm.mixture.fit(tmp_path / "swarm", losses, tmp_path / "a.yaml", metric=["loss_0"], model="law")
    assert not any("changed" in note or "same in all runs" in note for note in alone.notes)
    token_files(tmp_path / "data", {**TOKENS, "wiki": 6_000})
    report = fm.mixture.fit(
        tmp_path / "swarm", losses, tmp_path / "b.yaml", metric=["loss_0", "loss_1"], model="law", max_repeats=4
    )
    assert report.predicted == pytest.approx(alone.predicted / 2, abs=1e-3)
    assert "the losses of loss_1 are the same in all runs, and say nothing of mixtures" in report.notes
    assert "what is at hand has changed since the swarm was proposed: wiki (4,000 to 6,000 tokens)" in report.notes


def test_what_cannot_be_fitted_is_an_error(tmp_path: Path) -> None:
    swarm, losses = experiment(tmp_path, KnownLaw(0, 4), count=8)
    output = tmp_path / "best.yaml"
    with pytest.raises(fm.ConfigError, match="7 of 8 runs have losses: at least 8"):
        fm.mixture.fit(tmp_path / "swarm", losses, output, exclude=["run-001"])
    write_losses(tmp_path, swarm, np.full((8, 2), 3.25))
    with pytest.raises(fm.ConfigError, match=r"all 8 losses are 3\.25"):
        fm.mixture.fit(tmp_path / "swarm", losses, output)
    with pytest.raises(fm.ConfigError, match=r"name ends in \.yaml"):
        fm.mixture.fit(tmp_path / "swarm", losses, tmp_path / "best")
    with pytest.raises(fm.NotFound, match="no complete swarm"):
        fm.mixture.fit(tmp_path / "data", losses, output)
    (tmp_path / "swarm/mixtures.csv").write_text("run,web\n")
    with pytest.raises(fm.DataError, match="table of weights is damaged"):
        fm.mixture.fit(tmp_path / "swarm", losses, output)
    assert not output.exists()


def test_the_command_line_shows_models_and_proposal(tmp_path: Path) -> None:
    _, losses = experiment(tmp_path, KnownLaw(0, 4), noise=0.01, count=12)
    losses.write_text(losses.read_text() + "\nother,3,3,3,3")
    words = ["mixture", "fit", str(tmp_path / "swarm"), str(losses), "-o", str(tmp_path / "best.yaml")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1 and "a run of no recipe of this swarm (other)" in done.output
    done = CliRunner().invoke(app, [*words, "--on-error", "skip", "--metric", "loss_0=2", "--metric", "loss_3"])
    assert done.exit_code == 0, done.output
    assert "law (chosen)" in done.output and "95 % interval" in done.output and "loss_0 x 0.667" in done.output
    assert "left out: 1 x a run of no recipe of this swarm (other)" in done.output
