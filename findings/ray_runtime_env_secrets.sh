#!/usr/bin/env bash
# Ray writes the values of runtime_env={"env_vars": ...} in clear to a log that all users of a node can read, and keeps
# the file after the cluster has ended. Arguments of tasks are in no file of the session.
#
# Seen with ray 2.60.0, Python 3.11, Linux:
#   env_vars: found in runtime_env_agent.log, readable by all: True
#   argument of a task: found in nothing
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'ray==2.60.0'
cat >"$folder/try.py" <<'P'
import os, pathlib, stat, sys
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": sys.argv[1], "RAY_AUTH_MODE": "disabled", "HOME": sys.argv[1]}
import ray

@ray.remote
def read(given):
    return os.environ["MY_SECRET"], given

print("ray", ray.__version__)
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"MY_SECRET": "in-variables-1234"}})
assert ray.get(read.remote("in-arguments-1234")) == ("in-variables-1234", "in-arguments-1234")
session = pathlib.Path(ray._private.worker._global_node.get_session_dir_path())
files = [path for path in session.rglob("*") if path.is_file()]
logged = [path for path in files if b"in-variables-1234" in path.read_bytes()]
argued = [path for path in files if b"in-arguments-1234" in path.read_bytes()]
readable = any(stat.S_IMODE(path.stat().st_mode) & 0o004 for path in logged)
ray.shutdown()
print("env_vars: found in", ", ".join(sorted({p.name for p in logged})) or "nothing", "readable by all:", readable)
print("argument of a task: found in", ", ".join(sorted({p.name for p in argued})) or "nothing")
sys.exit(not (logged and readable and not argued))
P
short=$(mktemp -d /tmp/frXXXX)
trap 'rm -rf "$folder" "$short"' EXIT
"$folder/venv/bin/python" "$folder/try.py" "$short"
