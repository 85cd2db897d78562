import threading

import pytest

from feedmill.jobs.threads import THREAD_NAME


@pytest.fixture(autouse=True)
def _no_thread_left():
    """Not even by what ends with an error."""
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)]
