"""View 11: jobs, live and after their end, from the events of their units (`feedmill.jobs.events`)."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from feedmill.jobs.events import SIGN
from feedmill.web.library import OpenItem
from feedmill.web.logs import JobStage
from feedmill.web.parts import next_step
from feedmill.web.state import State

REFRESH, SILENT = 3000, 3 * SIGN  # milliseconds; seconds without an event after which a run may have been killed
_SLOWEST = 10


def jobs(thing: OpenItem, state: State) -> dict[str, Any]:  # noqa: ARG001
    """Return the stages of jobs as plain data: their units by state, rate, time left, slowest units and nodes.

    Raises:
        NotFound: the file is gone.
        DataError: there are no events in it.
    """
    found = thing.jobs
    share = found.look()
    now = time.time()
    stages = [_row(stage, now - found.heard[stage.run]) for stage in reversed(list(found.stages.values()))]
    states = {row["state"] for row in stages}
    running, silent = "running" in states, "silent" in states and "running" not in states
    return {
        "next": _next(stages, thing),
        "name": thing.name,
        "path": thing.path,
        "state": "silent" if silent else "live" if running else "ended",
        "age": round(max(0.0, now - found.last), 1),
        "read": round(share, 4),
        "refresh": REFRESH if running or share < 1 else None,
        "stages": stages,
        "dropped": found.dropped,
        "counts": {
            name: sum(row["counts"][name] for row in stages) for name in ("running", "done", "retried", "failed")
        },
        "failures": list(found.failures),
        "failed": found.failed,
        "warnings": list(found.warnings),
        "warned": found.warned,
        "skipped": found.skipped,
    }


def _is_there(stage: JobStage) -> bool:
    """Return whether the process of a run is one of this machine, and is there."""
    return stage.node == socket.gethostname() and os.path.isdir(f"/proc/{stage.process}")


def _row(stage: JobStage, silence: float) -> dict[str, Any]:
    """Return a stage, of whose run nothing was heard for some seconds."""
    units = stage.units
    state = "running" if not units.ended else "ended" if units.why is None else "failed"
    if state == "running" and silence > SILENT and not _is_there(stage):
        state = "silent"
    stage.live = state == "running"
    counts = units.counts()
    whole = max(1, units.total or sum(counts[name] for name in ("waiting", "running", "done", "failed")))
    row = {
        "key": f"{units.verb} {units.name}".strip(),
        "engine": units.engine,
        "part": units.part,
        "parts": units.parts,
        "state": state,
        "why": units.why,
        "silence": round(max(0.0, silence), 1),
        "counts": counts,
        "total": units.total,
        "shares": {name: round(100 * counts[name] / whole, 2) for name in ("done", "failed", "running")},
        "rate": None if units.rate is None else round(units.rate, 3),
        "left": None if units.ended or units.left is None else round(units.left, 1),
        "seconds": round(units.seconds, 1),
        "late": units.lates,
        "slowest": [
            {
                "name": one.name,
                "node": one.node,
                "process": one.process,
                "attempt": one.attempt,
                "age": round(units.age(one), 1),
            }
            for one in units.slowest(_SLOWEST)
        ],
        "nodes": [
            {"node": node, "units": int(count), "mean": round(seconds / max(1, count), 3)}
            for node, (count, seconds) in sorted(stage.nodes.items(), key=lambda item: -item[1][1] / max(1, item[1][0]))
        ],
    }
    stage.live = False
    return row


def _next(stages: list[dict[str, Any]], thing: OpenItem) -> dict[str, Any]:
    if any(row["state"] == "failed" for row in stages[:1]):
        return next_step("The last stage failed. Correct what it names, and run the same command: it resumes.")
    return next_step("Keep this job for a ticket:", code=f"feedmill serve {thing.path} --export job.html")
