"""The table of conversions: the documentation has it as it is, and every pair of it is round-tripped by a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from feedmill.converting import table
from feedmill.converting.convert import convert
from feedmill.converting.losses import value_table
from feedmill.converting.table import conversion_table, family, sources, target_table, token_targets
from feedmill.errors import ConfigError
from feedmill.formats.registry import targets

PAGE = Path(__file__).parents[2] / "docs/internals/conversions.md"


def test_the_documentation_has_the_table() -> None:
    assert conversion_table() in PAGE.read_text()
    assert target_table() in PAGE.read_text()
    assert value_table() in PAGE.read_text()


def test_every_conversion_has_a_family() -> None:
    for kind, takes in sources().items():
        for to in targets():
            if targets()[to] in takes:
                assert family(kind, to, "x") in (table.SAMPLES, table.ROWS, table.TOKENS)
            elif not (kind == "vla" and to in token_targets()):  # tokenized text is told by what is asked for
                with pytest.raises(ConfigError) as error:
                    family(kind, to, "x")
                assert error.value.kind == "no-conversion" and error.value.fix


@pytest.mark.parametrize(("to", "meant"), [("webdatset", "webdataset"), ("parqet", "parquet"), ("pbim", "pbin")])
def test_what_was_meant(to: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"Did you mean '{meant}'"):
        family("energon", to, "x")


def test_unknown_formats() -> None:
    with pytest.raises(ConfigError, match="Formats are webdataset"):
        family("energon", "qqq", "x")


@pytest.mark.parametrize(
    ("to", "options"),
    [("webdataset", {"wids": True}), ("pbin", {"wids": True}), ("mds", {"token_size": 2}), ("parquet", {"seq_len": 8})],
)
def test_options_that_a_format_has_no_use_for(to: str, options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match="requires --to"):
        convert(tmp_path / "x.jsonl", tmp_path / "y", to, **options)
    assert not (tmp_path / "y").exists()
