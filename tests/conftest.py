import contextlib
import functools
import gc
import itertools
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest
import typer.main
from hypothesis import settings

from feedmill.jobs import resources
from helpers.durations import (
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_ignore_collect,
)
from helpers.kinds import refuse_unlisted
from helpers.stores import azure_container, azurite, gcs_bucket, s3_bucket, s3_server
from helpers.zygote import unsynced

__all__ = ["azure_container", "azurite", "gcs_bucket", "s3_bucket", "s3_server"]
__all__ += ["pytest_addoption", "pytest_collection_modifyitems", "pytest_configure", "pytest_ignore_collect"]

# Until all tests are collected: each search for garbage would walk through those that there are.
gc.disable()

# A shell starts a background job with SIGINT ignored, which children inherit: tests of Ctrl-C would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What only changes how printed text looks would change it in what tests compare. A proxy that the shell names must not
# be asked for servers on this machine.
for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"):
    os.environ.pop(name, None)
for name in ("NO_PROXY", "no_proxy"):
    os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost", "::1"]))

# What tests write lies in memory where there is room for it: they make and remove a million files, which takes a fifth
# of their time on a disk, and more than half of it where that is busy. TMPDIR says another place.
_MEMORY, _ROOM = "/dev/shm", 8 << 30
if "TMPDIR" not in os.environ and os.path.isdir(_MEMORY):
    _found = os.statvfs(_MEMORY)
    if _found.f_bavail * _found.f_frsize >= _ROOM and not _found.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = f"{_MEMORY}/tests-{os.getuid()}"
        os.makedirs(os.environ["TMPDIR"], 0o700, exist_ok=True)
        tempfile.tempdir = None

# Without bytecode, each of the thousands of processes that tests start compiles its modules again, which takes three
# quarters of its time, and so does each process of pytest with its tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Each client of a store would read all certificates of this machine, which takes longer than a request; the servers of
# the tests have none.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "helpers/root.pem")
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent / "helpers/rare")

# Each process of pytest has one core: threads of OpenMP that wait for those of another process do it busily.
os.environ["OMP_NUM_THREADS"] = "1"

# A busy machine is slow enough for second requests, which tests that count requests do not expect.
os.environ["FEEDMILL_HEDGE"] = "off"

# What is not told how many processes to use does not start a pool, as on a machine with one core: pytest itself runs on
# all of them, and tests of pools say how many. Processes that tests start use what there is.
resources.available_cores = functools.wraps(resources.available_cores)(lambda: 1)

# Each command that a test runs in this process would read the annotations of its function again, and that twice: a
# tenth of what a short one takes.
typer.main.get_params_from_function = functools.cache(typer.main.get_params_from_function)

# The fork server imports what workers of most tests need, not what the first of them does: each would import it again.
_WORKERS = ("pytest", "hypothesis", "feedmill.loading.loader", "feedmill.loading.workers", "feedmill.samples.open")
_WORKERS += ("feedmill.planning.recipes.compile", "feedmill.tokens.job", "feedmill.curation.dedupe.exact")
_WORKERS += ("feedmill.curation.mix.shard", "feedmill.curation.stat", "feedmill.curation.tag")
_WORKERS += ("feedmill.converting.rows", "feedmill.importing.samples", "feedmill.indexing.scanning")
_preload = forkserver.set_forkserver_preload


def _preloading(names: list[str]) -> None:
    torch = [name for name in ("torch",) if name in sys.modules]  # where its tests are among those of this run
    _preload(list(dict.fromkeys([*names, *_WORKERS, *torch])))


forkserver.set_forkserver_preload = _preloading

# What tests write need not survive a loss of power, but for the faults of `faults`, whose processes are their own.
# Waiting for the disk thousands of times takes minutes where it is busy.
os.fsync = unsynced

refuse_unlisted()

settings.register_profile("feedmill", deadline=None)  # a busy machine is no failure
# For `make test` and `make test-quick`: the same on every machine, a sixth and an eighth of the others' examples.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=16)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=12)
settings.load_profile("feedmill")

_FAILED = pytest.StashKey[bool]()
_FOLDERS = itertools.count()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """No test leaves this process real-time: a busy child of a later one would stop the machine for minutes."""
    yield
    if hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        pytest.fail(f"{item.name} made this process real-time (see tests/helpers/media_files.py, `at_its_priority`)")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """The collected tests stay: without this, each search for garbage of a test walks through a million objects.

    For each of its phases pytest adds two handlers to the loggers that pass nothing on, which are 33 of torch alone.
    """
    gc.freeze()
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.enable()


class FailuresAtOnce:
    """Names each failure when it happens: a run that is cut off by its time prints no summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            where = getattr(report.longrepr, "reprcrash", None) or str(report.longrepr).strip().rpartition("\n")[2]
            message = getattr(where, "message", where).partition("\n")[0]
            self._terminal.write_line("")
            took = f"{report.when}, {report.duration:.0f} s"
            self._terminal.write_line(f"FAILED {report.nodeid} ({took}): {message[:300]}")


def pytest_sessionstart(session: pytest.Session) -> None:
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        session.config.pluginmanager.register(FailuresAtOnce(terminal))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The cache of the user, and with it that of all other runs on this machine, is not that of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The folder of a test, emptied if the test passed: all of them together take gigabytes.

    The folder itself stays, so that no later test gets one of the same name: some caches are kept by path. The number
    of a folder is counted here, as pytest lists those of all tests before it to find one.
    """
    name = re.sub(r"\W", "_", request.node.name)[:30]
    tmp_path = tmp_path_factory.mktemp(f"{name}{next(_FOLDERS)}", numbered=False)
    yield tmp_path
    if not request.node.stash.get(_FAILED, False):
        for entry in os.scandir(tmp_path):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
