#!/usr/bin/env bash
# A task that Ray was asked to interrupt cannot be killed any more if its process is stopped.
#
# `ray.cancel(task, force=True)` kills the process of a task, also a stopped one (SIGSTOP, as a debugger or a frozen
# cgroup makes it), after five seconds. After `ray.cancel(task)` the driver waits for the answer of that process, and a
# forced cancel that follows does nothing and says nothing: the task, and its core, are never released. So "first
# gently, then by force" is weaker than force alone for the one kind of process that needs it.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check ray==2.60.0
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import os, signal, time
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_enable_metrics_collection="0", RAY_AUTH_MODE="disabled")
import ray

ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)


@ray.remote(num_cpus=1, max_retries=0)
def stop(path):
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


seen = {}
for name, calls in {"forced": (True,), "soft, then forced": (False, True)}.items():
    path = os.path.abspath(name.replace(", ", "-").replace(" ", "-"))
    task = stop.remote(path)
    while not os.path.exists(path) or not open(path).read():
        time.sleep(0.05)
    time.sleep(1)
    for force in calls:
        ray.cancel(task, force=force)
        time.sleep(1)
    seen[name] = bool(ray.wait([task], timeout=20)[0])
    process = int(open(path).read())
    print(f"ray {ray.__version__}, {name}: the task {'has' if seen[name] else 'has not'} ended")
    if os.path.exists(f"/proc/{process}"):
        os.kill(process, signal.SIGKILL)
ray.shutdown()
assert seen == {"forced": True, "soft, then forced": False}, "changed"
PYTHON
