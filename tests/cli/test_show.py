from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feedmill.cli.show import as_text


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
