"""Options of the verbs that load and cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, Any

from feedmill.jobs.options import Arg, Flag, Opt, Path, PythonOnly, WithProgress
from feedmill.planning.options import Samples
from feedmill.samples.options import Trust

if TYPE_CHECKING:
    from feedmill.loading.loader import Output
    from feedmill.planning.plan import Plan
    from feedmill.planning.recipes.recipe import Recipe


def _numbers(text: str) -> list[int]:
    """Return the numbers in a text with commas between. Raises `typer.BadParameter`."""
    found = text.replace(" ", "").split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in found):
        from typer import BadParameter

        what = f"{text!r} is not a comma-separated list of whole numbers, e.g. 0,2,4"
        raise BadParameter(what, param_hint="--workers")
    return [int(word) for word in found]


class Bench(Trust):
    """Measure how fast a recipe loads on this machine, with different numbers of workers, and suggest improvements.

    The measuring loop does nothing with the batches, so a real training loop waits less.
    """

    recipe: Annotated[Path | Recipe | Plan, Arg("RECIPE", "A recipe (docs/recipes.md); a path or a URL.")]
    batch_size: Annotated[
        int | None, Opt("N", "Samples per batch; default: the recipe's budget, else 32.", "-b", min=1)
    ] = None
    _: KW_ONLY
    world: Annotated[int, Opt("N", "Measure rank 0 of N ranks.", min=1)] = 1
    workers: Annotated[
        Sequence[int] | None,
        Opt("N,N,...", "Numbers of workers to try; default: 0 up to the number of cores.", text=str, parse=_numbers),
    ] = None
    processes: Annotated[bool, Flag("Use worker processes instead of threads.")] = False
    seconds: Annotated[float, Opt("S", "Seconds to measure each number of workers.", min=0.01)] = 3.0
    start: Annotated[int, Opt("N", "Position of the plan at which to start.", min=0)] = 0
    output: Annotated[Output, Opt("numpy|torch", "Array type of the batches.", "--arrays")] = "numpy"
    device: Annotated[str | None, Opt("NAME", "Device to copy torch batches to, such as cuda.")] = None
    log: Annotated[Callable[[str], None] | None, PythonOnly("Called with a line of text before each run.")] = None
    transform: Annotated[Any, PythonOnly("That of the `Loader`.")] = None
    loader: Annotated[Mapping[str, Any] | None, PythonOnly("Further arguments of the `Loader`.")] = None


class Cache(Samples, Trust, WithProgress):
    """List what the cache of remote data holds, fetch the data of recipes before a run, or delete it.

    A loader keeps remote data on this machine's disk if FEEDMILL_CACHE_SIZE is set, or 'cache' in its recipe. Copies of
    remote indices are always kept.
    """

    action: Annotated[str, Arg("list|warm|clear", "What to do.")]
    targets: Annotated[
        Sequence[Path | Recipe | Plan],
        Arg(
            "[TARGET...]",
            "For warm: recipes, paths or URLs. For list and clear: beginnings of URLs; default: everything.",
        ),
    ] = ()
    _: KW_ONLY
    dir: Annotated[str | None, Opt("FOLDER", "Folder of the cache; default: as in the recipe or environment.")] = None
    size: Annotated[int | str | None, Opt("SIZE", "For warm: bytes that the cache may hold, such as 200GB.")] = None
