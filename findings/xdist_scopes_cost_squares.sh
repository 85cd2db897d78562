#!/usr/bin/env bash
# pytest-xdist's loadgroup, loadscope and loadfile compare n * n / 2 names for n tests; load compares none.
#
# Each test is looked up in the list of all tests when it is sent to a worker, by the one process that also feeds the
# workers: a suite of ten times the tests pays a hundred times.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pytest==9.2.0 pytest-xdist==3.8.0
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
from types import SimpleNamespace

import xdist
from xdist import scheduler


class Name(str):
    """Name of a test that counts how often it is compared with another one."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)


class Worker:
    """A worker that keeps what it is sent."""

    def __init__(self, number):
        self.gateway, self.sent, self.shutting_down, self.done = SimpleNamespace(id=f"gw{number}"), [], False, 0

    def send_runtest_some(self, indices):
        self.sent += indices

    def shutdown(self):
        self.shutting_down = True


class Quiet:
    def __call__(self, *_):
        pass

    def __getattr__(self, _):
        return self


options = {"tx": ["popen", "popen"], "maxschedchunk": None, "loadscopereorder": True, "maxfail": 0}
config = SimpleNamespace(
    option=SimpleNamespace(**options), getvalue=options.get, getoption=lambda name, *_: options.get(name)
)


def compared(kind, count):
    """Let a scheduler send tests to two workers until all are done; return the number of comparisons."""
    end = "@{}" if kind == "LoadGroupScheduling" else ""
    names = [Name(f"test_{n // 10}.py::test[{n}]" + end.format(n)) for n in range(count)]
    schedule, workers = getattr(scheduler, kind)(config, Quiet()), [Worker(0), Worker(1)]
    for worker in workers:
        schedule.add_node(worker)
    for worker in workers:
        schedule.add_node_collection(worker, list(names))
    Name.compared = 0
    schedule.schedule()
    while any(worker.done < len(worker.sent) for worker in workers):
        for worker in workers:
            for index in worker.sent[worker.done :]:
                worker.done += 1
                schedule.mark_test_complete(worker, index)
    assert sum(worker.done for worker in workers) == count
    return Name.compared


kinds = ("LoadScheduling", "LoadGroupScheduling", "LoadScopeScheduling", "LoadFileScheduling")
found = {kind: [compared(kind, count) for count in (500, 1000, 2000)] for kind in kinds}
print(f"pytest-xdist {xdist.__version__}, comparisons of names to send 500, 1,000 and 2,000 tests: {found}")
assert found.pop("LoadScheduling") == [0, 0, 0], "changed"
assert all(counts == [n * (n - 1) // 2 for n in (500, 1000, 2000)] for counts in found.values()), "changed"
PYTHON
