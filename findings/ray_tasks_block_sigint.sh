#!/usr/bin/env bash
# What a Ray task starts cannot be interrupted: SIGINT is blocked in Ray's workers, and child processes inherit that.
#
# A task that ends a recorder, an encoder or a training script gently, by `child.send_signal(signal.SIGINT)`, waits for
# ever: the signal stays pending in the child, which neither ends nor says anything. The same lines outside Ray end it
# at once. `subprocess` does not help: `restore_signals` restores what is ignored, not what is blocked, and a handler
# that the child installs is never called. SIGTERM does arrive. The child must begin with
# `signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})`; then the pending signal arrives, too.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check ray==2.60.0
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import os, signal, subprocess, sys
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_enable_metrics_collection="0", RAY_AUTH_MODE="disabled")
import ray

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell that runs this beside others ignores it
WAITS = "import time; print('ready', flush=True); time.sleep(20)"
UNBLOCKS = "import signal; signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT}); " + WAITS


def ended_by(number, program):
    """Return the exit status of a child that is sent a signal; None if it has not ended after 5 s."""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    child.stdout.readline()
    child.send_signal(number)
    try:
        return child.wait(5)
    except subprocess.TimeoutExpired:
        child.kill()
        return None


ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
there = ray.remote(ended_by)
seen = {
    "SIGINT outside Ray": ended_by(signal.SIGINT, WAITS),
    "SIGINT in a task": ray.get(there.remote(signal.SIGINT, WAITS)),
    "SIGTERM in a task": ray.get(there.remote(signal.SIGTERM, WAITS)),
    "SIGINT in a task, unblocked by the child": ray.get(there.remote(signal.SIGINT, UNBLOCKS)),
}
ray.shutdown()
for name, status in seen.items():
    print(f"ray {ray.__version__}, {name}: {'still running after 5 s' if status is None else f'exit status {status}'}")
assert list(seen.values()) == [-2, None, -15, -2], "changed"
PYTHON
