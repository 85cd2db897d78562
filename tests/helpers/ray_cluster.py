"""A Ray cluster of two nodes on this machine, for tests."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from feedmill.jobs.ray_engine import _SETTINGS, RayEngine

RAY_MISSING = "Ray is not installed: pip install 'feedmill[ray]'"
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_log_monitor": False}
SECRET = "LEAKED-0123456789-SECRET"
_WITHOUT_TASK = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")
_FAST = {
    # A node that is gone is noticed within seconds: its port refuses. One that is only stopped for a while, on a busy
    # machine, has time to answer: Ray ends a node that it took for dead, and with it the process that is connected.
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 60_000,
    "health_check_failure_threshold": 3,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip(RAY_MISSING)
    with two_nodes() as found:
        yield found


@pytest.fixture(scope="module")
def connection(cluster: Any) -> Iterator[str]:
    """Connect this process, which has a secret, to the cluster for all tests of a module, whose engines share its warm
    workers.
    """
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", SECRET)
        first = RayEngine(cluster.address)
        first._connect()
    yield cluster.address
    ray.shutdown()


@pytest.fixture
def engine(connection: str) -> Iterator[RayEngine]:
    with RayEngine(connection) as found:
        yield found


@contextmanager
def two_nodes(variables: Mapping[str, str] | None = None, **head_options: Any) -> Iterator[Any]:
    """Start a head without processors and two nodes with one each; yield the `ray.cluster_utils.Cluster`.

    `variables` are those of the nodes and of this process. On a busy machine Ray may not start in its own time: it is
    started once more. Then the test fails, except at a load that nothing starts at.
    """
    if importlib.util.find_spec("ray") is None:
        pytest.skip(RAY_MISSING)
    # Names of sockets have at most 107 bytes, and the session's own folders need 65: tmp_path is too long.
    home = tempfile.mkdtemp(prefix="fmr", dir="/tmp")
    path = os.pathsep.join(path for path in sys.path if path)  # workers import the tests' helpers
    own = {
        "RAY_TMPDIR": home,
        "RAY_worker_niceness": "0",
        "RAY_enable_metrics_collection": "0",
        "RAY_AUTH_MODE": "disabled",  # whatever the home folder has
        "PYTHONPATH": path,
    }
    cluster = None
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**_SETTINGS, **own, **(variables or {})}.items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.delenv("FEEDMILL_CACHE_DIR", raising=False)  # nodes get the variables of this process
        try:
            try:
                cluster = _started(home, 0, head_options)
            except Exception:
                try:
                    cluster = _started(home, 2, head_options)
                except Exception as error:
                    load = os.getloadavg()[0]
                    if load > 4 * (os.cpu_count() or 1):
                        pytest.skip(f"a Ray cluster does not start twice at a load of {load:.0f}: {error}")
                    raise
            yield cluster
        finally:
            if cluster is not None:
                cluster.shutdown()
            shutil.rmtree(home, ignore_errors=True)


def _started(home: str, number: int, head_options: Mapping[str, Any]) -> Any:
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 0, "include_dashboard": False, "no_monitor": True, "_system_config": _FAST}
    cluster = None
    try:
        cluster = Cluster(initialize_head=True, head_node_args={**NODE, **options, **head_options})
        with pytest.MonkeyPatch.context() as patch:
            for node in range(number, number + 2):
                patch.setenv("HOME", os.path.join(home, f"home{node}"))  # each has a cache folder of its own
                os.mkdir(os.environ["HOME"])
                cluster.add_node(**NODE)
        return cluster
    except Exception:
        if cluster is not None:
            cluster.shutdown()
        raise


def workers_of(cluster: Any) -> list[Any]:
    """Return the worker processes of the nodes that are at work; as `psutil.Process`, of Ray's own copy."""
    from ray._private.utils import psutil  # type: ignore[attr-defined]

    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            title = " ".join(process.cmdline())  # a task has the name that Ray's dashboard shows
            if title.startswith("ray::") and not title.startswith(_WITHOUT_TASK):
                found.append(process)
        except psutil.Error:
            continue
    return found
