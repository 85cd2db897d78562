"""A Ray cluster of two nodes on this machine, for tests."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from feedmill.jobs.ray_engine import _SETTINGS

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
_FAST = {  # a node that is gone is noticed within seconds
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Start a head without processors and two nodes with one each; yield the `ray.cluster_utils.Cluster`."""
    # Names of sockets have at most 107 bytes, and the session's own folders need 65: tmp_path is too long.
    home = tempfile.mkdtemp(prefix="fmr", dir="/tmp")
    before = dict(os.environ)
    os.environ.update(_SETTINGS, RAY_TMPDIR=home, RAY_worker_niceness="0", RAY_enable_metrics_collection="0")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # workers import the tests' helpers
    os.environ.pop("RAY_ADDRESS", None)
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": 80 << 20, "include_dashboard": False, "_system_config": _FAST}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            cluster.add_node(**NODE)
        yield cluster
    finally:
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(home, ignore_errors=True)


def workers_of(cluster: Any) -> list[Any]:
    """Return the worker processes of the nodes that are at work; as `psutil.Process`, of Ray's own copy."""
    from ray._private.utils import psutil  # type: ignore[attr-defined]

    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline()[:1] == ["ray::_call"]:
                found.append(process)
        except psutil.Error:
            continue
    return found
