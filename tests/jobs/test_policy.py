"""One vocabulary for errors."""

from __future__ import annotations

import pytest

from feedmill.errors import ConfigError
from feedmill.jobs.policy import on_error_policy


def test_two_policies_are_known() -> None:
    assert [on_error_policy(word) for word in ("raise", "skip")] == ["raise", "skip"]
    with pytest.raises(ConfigError, match="unknown error policy 'ignore'") as caught:
        on_error_policy("ignore")
    assert caught.value.fix == "Use 'raise' or 'skip'."
