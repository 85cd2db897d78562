"""The views: of what kind of thing each is, the function that makes it, what it shows, and its key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedmill.web import bench as bench_view
from feedmill.web import compare as compare_view
from feedmill.web import duplicates as duplicates_view
from feedmill.web import health as health_view
from feedmill.web import life as life_view
from feedmill.web import loader as loader_view
from feedmill.web import mixture as mixture_view
from feedmill.web import pipeline as pipeline_view
from feedmill.web import samples as samples_view
from feedmill.web import step as step_view
from feedmill.web import tokens as tokens_view
from feedmill.web.library import Thing
from feedmill.web.state import State

View = Callable[[Thing, State], dict[str, Any]]

VIEWS: dict[str, tuple[str | tuple[str, ...], View, str]] = {
    "samples": ("dataset", samples_view.samples, "Table or grid of any format, with filters and histograms"),
    "step": ("recipe", step_view.step, "What each rank sees, decoded, with cost and sightings"),
    "mixture": ("recipe", mixture_view.mixture, "Recipe tree, asked and realized shares, what-if weights"),
    "life": ("recipe", life_view.life, "A document from its raw line to the steps that see it"),
    "filters": ("dataset", bench_view.bench, "Thresholds over score histograms, kept and dropped live"),
    "duplicates": ("dataset", duplicates_view.duplicates, "Clusters with word diff, source by source"),
    "health": ("dataset", health_view.health, "Findings, strip of shards, outliers"),
    "tokens": ("dataset", tokens_view.tokens, "Lengths, fertility, unknown tokens, packing fill"),
    "pipeline": ("pipeline", pipeline_view.pipeline, "Steps, their files, hashes and durations"),
    "loader": ("telemetry", loader_view.loader, "Wait, read, transform and transfer per rank"),
    "compare": (("dataset", "recipe", "pipeline"), compare_view.compare, "Two datasets, recipes or runs, side by side"),
}
KEYS = {
    "samples": "s",
    "step": "t",
    "mixture": "m",
    "life": "l",
    "filters": "f",
    "duplicates": "d",
    "health": "h",
    "tokens": "o",
    "pipeline": "p",
    "loader": "w",
    "compare": "c",
}
