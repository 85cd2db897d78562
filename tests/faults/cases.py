"""The writing verbs, each on data that is small but has several files of each kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from faults import looks

TESTS = Path(__file__).parents[1]
TOKENIZER = TESTS / "golden/modalities/tok256/tokenizer.json"


@dataclass(frozen=True)
class Case:
    """A verb with its data.

    Attributes:
        name: what it is called.
        words: the command, run in the folder with its data.
        make: makes the data in a folder.
        look: what a reader sees of what the verb changes, given the folder; raises `FeedmillError` where there is
            nothing.
        least: calls that it makes at least, or the case has lost its sense.
        each: what `look` gives is a mapping, each entry of which may be old or new by itself.
        unfinished: kinds of errors by which readers may say that a change is not finished, where the documentation
            tells of that.
        volatile: names of files (patterns) that may differ from run to run.
        plain: what is compared of a file, where that is not its bytes.
    """

    name: str
    words: tuple[str, ...]
    make: Callable[[Path], Any]
    look: Callable[[Path], Any]
    least: int = 5
    each: bool = False
    unfinished: tuple[str, ...] = ()
    volatile: tuple[str, ...] = ()
    plain: Callable[[Path], bytes] | None = None


def see(function: Callable[..., Any], *names: str) -> Callable[[Path], Any]:
    return partial(_see, function, names)


def _see(function: Callable[..., Any], names: tuple[str, ...], folder: Path) -> Any:
    return function(folder, *names)


def both(*made: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return partial(_both, made)


def _both(made: tuple[Callable[[Path], Any], ...], folder: Path) -> None:
    for one in made:
        one(folder)


# --- data ------------------------------------------------------------------------------------------------------------


def sample_set(folder: Path, name: str = "d", count: int = 12, first: int = 0, per_shard: int = 4) -> None:
    import feedmill as fm
    from written import samples

    fm.write(str(folder / name), samples(count, first), samples_per_shard=per_shard, sample_type="CrudeWebdataset",
             progress=False)  # fmt: skip


def documents(folder: Path) -> None:
    from curated import write_tree

    write_tree(folder / "d", 3, 4)


def texts(folder: Path) -> None:
    (folder / "texts").mkdir()
    for number in range(3):
        rows = [json.dumps({"text": f"word {number} {k} " * (k + 1)}) for k in range(6)]
        (folder / f"texts/{number}.jsonl").write_text("\n".join(rows) + "\n")


def token_files(folder: Path) -> None:
    from converted import tokens

    tokens(folder / "t", files=2)


def tokenize(to: str, *more: str) -> tuple[str, ...]:
    return ("tokenize", "texts", "-o", "out/x", "-t", str(TOKENIZER), "--to", to, "--workers", "1", *more)


CASES: dict[str, Case] = {
    case.name: case
    for case in [
        Case("tokenize pbin", tokenize("pbin"), texts, see(looks.tokens, "out/x.pbin")),
        Case("merge", ("merge", "t/0.ds", "t/1.ds", "m.pbin"), token_files, see(looks.tokens, "m.pbin")),
    ]
}
