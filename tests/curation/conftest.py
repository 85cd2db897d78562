import threading

import pytest

from feedmill.jobs.threads import THREAD_NAME


@pytest.fixture(autouse=True)
def _no_thread_left():
    """Not even by what ends with an error."""
    before = set(threading.enumerate())  # those of earlier tests may still be ending
    yield
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith(THREAD_NAME)]
