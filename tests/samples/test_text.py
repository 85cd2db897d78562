from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.samples.text import as_text
from helpers.tars import write_tar


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a cat", "a cat"),
        (3, "3"),
        (None, "None"),
        (b"plain text\n", "plain text"),
        (b"\xff\xd8\xff\x00", r"4 B: \xff\xd8\xff\x00"),
        ({"a": 1, "b": [1, 2]}, '{"a": 1, "b": [1, 2]}'),
        ({"a": b"\x00"}, '{"a": "1 B: \\\\x00"}'),
        ({b"k": 1}, "{b'k': 1}"),
        (np.zeros((4, 6, 3), np.uint8), "image 6 x 4, 3 channels, uint8"),
        (np.zeros((3, 4, 6), np.float32), "image 6 x 4, 3 channels, float32"),
        (np.zeros((4, 6), np.uint8), "image 6 x 4, 1 channel, uint8"),
        (np.array([1, 2, 3]), "array 3, int64: [1, 2, 3]"),
        (np.float32(2), "array scalar, float32: [2.0]"),
    ],
)
def test_values_as_text(value: Any, text: str) -> None:
    assert as_text(value) == text


def test_long_values_are_cut_and_say_so() -> None:
    assert as_text("x" * 30, width=10) == "x" * 10 + "... (+20 characters)"
    assert as_text("a\nb\nc\nd", lines=2) == "a\nb\n... (+2 lines)"
    assert as_text({str(i): "v" * 20 for i in range(40)}, lines=3).count("\n") == 3


def test_text_and_names_do_not_command_the_terminal(tmp_path: Path) -> None:
    write_tar(tmp_path / "d.tar", [("k\x1b[1m.txt", b"\x1b[2Jgone"), ("k\x1b[1m.json", b'"\xc2\x9b1m"')])
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "d.tar")], color=True)
    assert shown.exit_code == 0 and r"\x1b[2Jgone" in shown.output
    assert "\x1b[2J" not in shown.output and "\x1b[1m." not in shown.output and "\x9b" not in shown.output
