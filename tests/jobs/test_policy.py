"""One vocabulary for errors."""

from __future__ import annotations

import logging

import pytest

from feedmill.errors import ConfigError
from feedmill.jobs.policy import on_error_policy


@pytest.mark.parametrize(("word", "now"), [("fail", "raise"), ("stop", "raise"), ("continue", "skip")])
def test_words_of_earlier_releases_are_taken_with_one_line(
    word: str, now: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "feedmill"):
        assert on_error_policy(word) == now
    assert [record.getMessage() for record in caplog.records] == [
        f"on-error {word} is now called {now}; the old name will be removed"
    ]


def test_the_words_of_today_are_silent_and_others_refused(caplog: pytest.LogCaptureFixture) -> None:
    assert [on_error_policy(word) for word in ("raise", "skip")] == ["raise", "skip"] and not caplog.records
    with pytest.raises(ConfigError, match="unknown error policy 'ignore'") as caught:
        on_error_policy("ignore")
    assert caught.value.fix == "Use 'raise' or 'skip'."
