"""Run a command, and print its wall time, processor time and peak memory as JSON; see `measure.run`.

python spawn.py COMMAND ARGUMENT...
"""

import json
import os
import subprocess
import sys
import time

begin = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
wall = time.perf_counter() - begin
print(json.dumps({"s": wall, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_mb": usage.ru_maxrss / 1e3}))
sys.exit(min(abs(process.returncode), 255))
