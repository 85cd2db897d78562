"""Run a Ray cluster of two nodes with a core each on this machine: print its address, and end with stdin."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile


def main() -> None:
    home = tempfile.mkdtemp(prefix="fmr", dir="/tmp")  # names of sockets have at most 107 bytes
    os.environ.update(RAY_TMPDIR=home, RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")
    os.environ.pop("RAY_ADDRESS", None)
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
        print(cluster.address, flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
