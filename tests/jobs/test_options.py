"""Classes of options are frozen dataclasses, although `dataclass` makes none of their methods."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, FrozenInstanceError, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.curation.stat import stat
from feedmill.curation.tag import tag
from feedmill.errors import ConfigError
from feedmill.jobs.options import Arg, Flag, Opt, Options, Processes, options_of, verb
from feedmill.tokens.options import Tokenize
from helpers.document_datasets import write_tree


class Base(Options, kw_only=True):
    """A base."""

    loud: Annotated[bool, Flag("Loud.")] = False


class Try(Base, Processes):
    """Try it."""

    path: Annotated[str, Arg("PATH", "A path.")]
    other: Annotated[str, Arg("PATH", "Another.")] = "b"
    _: KW_ONLY
    name: Annotated[str, Arg("NAME", "A name.")] = "n"


def test_they_are_values() -> None:
    one = Try("a", loud=True)
    assert (one.path, one.other, one.name, one.loud, one.workers) == ("a", "b", "n", True, None)
    assert one == Try(path="a", loud=True) and hash(one) == hash(Try("a", "b", loud=True)) and one != Try("a")
    assert one != Tokenize("a", "b", tokenizer="c") and is_dataclass(Try)
    assert replace(one, name="m") == Try("a", name="m", loud=True)
    assert copy.deepcopy(one) == one == pickle.loads(pickle.dumps(one))
    assert [field.name for field in fields(one)] == ["workers", "loud", "path", "other", "name"]
    assert repr(one) == "Try(workers=None, loud=True, path='a', other='b', name='n')"
    assert list(options_of(Try)) == ["path", "other", "name", "loud", "workers"]
    assert one.deciding() == {"name": "n", "other": "b", "path": "a"}


def test_they_are_frozen() -> None:
    one = Try("a")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'path'"):
        one.path = "b"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'path'"):
        del one.path


@pytest.mark.parametrize(
    ("values", "named", "message"),
    [
        ((), {}, r"Try\(\) missing a required argument: 'path'"),
        (("a", "b", "c"), {}, r"Try\(\) takes 2 positional arguments, but 3 were given"),
        (("a",), {"path": "b"}, r"Try\(\) got multiple values for argument 'path'"),
        (("a",), {"pith": "b"}, r"Try\(\) got an unexpected keyword argument 'pith'"),
    ],
)
def test_wrong_arguments_are_named(values: tuple[str, ...], named: dict[str, str], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Try(*values, **named)  # type: ignore[arg-type]


def test_no_method_is_made_for_a_class() -> None:
    """Each would be compiled at every start of a command."""
    assert not {name for name, value in vars(Tokenize).items() if inspect.isfunction(value)}


class Several(Options):
    """Try several."""

    names: Annotated[Sequence[str], Opt("NAME", "Names.")]
    more: Annotated[tuple[str, ...] | None, Opt("NAME", "More.")] = None
    either: Annotated[str | Sequence[str], Opt("NAME", "One or several.")] = "x"


def test_one_text_for_several_is_one_of_them_and_not_its_letters() -> None:
    @verb(Several)
    def run(options: Several) -> tuple[object, ...]:
        return options.names, options.more, options.either

    assert run("abc", more="de", either="fg") == (["abc"], ["de"], "fg")
    assert run(["abc"], more=("d", "e")) == (["abc"], ("d", "e"), "x")


class Limited(Processes):
    """Numbers."""

    _: KW_ONLY
    share: Annotated[float, Opt("T", "A share; default: by itself.", min=0, max=1)] = -1
    either: Annotated[int | str, Opt("N", "A number or a word.", min=0)] = 0
    on: Annotated[bool, Flag("On.")] = False


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"workers": 0}, "limited: workers=0 is below 1"),
        ({"share": 1.5}, "limited: share=1.5 is above 1"),
        ({"share": float("nan")}, "limited: share=nan is not a number"),
        ({"either": -2}, "limited: either=-2 is below 0"),
        ({"workers": np.int64(0)}, "limited: workers=0 is below 1"),
        ({"share": np.float32(1.5)}, "limited: share=1.5 is above 1"),
    ],
)
def test_limits_of_numbers_hold_in_python_too(named: dict[str, float], message: str) -> None:
    @verb(Limited)
    def limited(options: Limited) -> Limited:
        return options

    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        limited(**named)  # type: ignore[arg-type]
    assert limited(share=-1, either="many", on=True) == Limited(either="many", on=True)


def test_an_empty_text_is_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of an unset variable of a shell: before, attributes were written to the root of the file system."""
    monkeypatch.chdir(tmp_path)
    write_tree(tmp_path / "d", 1, 2)
    monkeypatch.setattr(os, "mkdir", lambda *_, **__: pytest.fail("a folder is made"))
    for name, value in (("output", ""), ("output", [""]), ("name", ""), ("taggers", "")):
        with pytest.raises(ConfigError, match=f"tag: {name} is empty") as error:
            tag(["d/documents"], **{"taggers": "char_length_v1", "progress": False, name: value})
        assert error.value.kind == "bad-option"
    done = CliRunner().invoke(app, ["tag", "d/documents/*", "-t", "char_length_v1", "-o", ""])
    assert done.exit_code == 1 and "tag: output is empty" in done.output
    for name in ("attributes", "id"):
        with pytest.raises(ConfigError, match=f"stat: {name} is empty"):
            stat("d/documents", **{name: ""})
