"""The engine of Ray clusters: ``--engine ray`` runs units as tasks, and gets only their facts back.

Units run as plain tasks with declared processors and memory, in processes that Ray keeps warm (`ray_tasks.py`), on
nodes that were checked (`ray_nodes.py`). Nothing of the data goes through Ray's object store.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import IO, Any

from feedmill.errors import ConfigError, MissingExtra
from feedmill.jobs.engine import Engine, Stage
from feedmill.jobs.ray_nodes import Nodes, check_of, first_line
from feedmill.jobs.ray_tasks import Tasks
from feedmill.jobs.resources import Resources, needed

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # would copy the environment of `uv run` to each node
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # lines that Ray would print on stdout, among the JSON of a verb
}
"""Settings of Ray in this process, unless the user has set them."""
_PATIENCE = 10.0  # seconds that the head of the cluster has to answer
_IMPORT = 120.0  # seconds that Ray has to be imported, on a busy machine
_PING = """
import sys
from ray._private import services
from ray._raylet import GcsClient
print("found", services.canonicalize_bootstrap_address(sys.argv[1]), flush=True)
GcsClient(address=services.canonicalize_bootstrap_address(sys.argv[1])).internal_kv_get(b"session_name", b"session")
print("answered", flush=True)
"""
"""Asks the head of a cluster for the name of its session. Ray does so too, and tries for minutes if nothing answers."""
_PING_CLIENT = """
import sys, ray
print("found", sys.argv[1], flush=True)
ray.init(sys.argv[1], log_to_driver=False)
print("answered", flush=True)
"""


class RayEngine(Engine):
    """Engine of a Ray cluster that is running.

    Args:
        address: ``auto`` for the cluster of ``RAY_ADDRESS``, or that of this machine; ``host:port``;
            ``ray://host:port``.
        max_tasks: tasks at the same time; None for what the cluster has processors for.
        cpus: processors of a task.
        memory: bytes that a task needs at most, for Ray's scheduler; None for no declaration.
        gpus: GPUs of a task; a fraction if several share one.
        custom: custom resources of a task, by name.
        labels: labels that a node must have to run a task. Steps of a pipeline may declare all of these, too.
        work: see `Engine`.

    Raises:
        MissingExtra: Ray is not installed.
        ConfigError: there is no cluster at the address, a node cannot do the work, or none has what a task needs.
    """

    name = "ray"

    def __init__(
        self,
        address: str = "auto",
        *,
        max_tasks: int | None = None,
        cpus: float | None = None,
        memory: int | None = None,
        gpus: float | None = None,
        custom: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
        work: str | None = None,
    ) -> None:
        super().__init__(work)
        if max_tasks is not None and max_tasks < 1:
            raise ConfigError(f"--max-tasks {max_tasks} is invalid", fix="Use at least 1.")
        _refuse_other(address, "--address")
        self.address, self.max_tasks = address, max_tasks
        self.resources = Resources(cpus, memory, gpus, custom or {}, labels or {})
        self._ray: Any = None
        self._nodes: Nodes
        self._ours = False
        self._copied = False

    def __enter__(self) -> RayEngine:
        super().__enter__()
        try:
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._copied:
            self._copied = False
            self._nodes.forget_copies()
        if self._ours:
            self._ours = False
            self._ray.shutdown()

    def settings(self) -> dict[str, Any]:
        address = self.address if "://" in self.address else self._ray.get_runtime_context().gcs_address
        return {**super().settings(), "address": address, "max_tasks": self.max_tasks, **self.resources.declared()}

    def _connect(self) -> None:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        try:
            import ray
        except ImportError:
            raise MissingExtra("--engine ray needs Ray, which is not installed", "ray") from None
        self._ray, self._nodes = ray, Nodes(ray)
        if ray.is_initialized():
            return
        address = self.address
        if address == "auto" and (address := os.environ.get("RAY_ADDRESS") or "auto") != "auto":
            _refuse_other(address, "RAY_ADDRESS")
        reached = self._reach(address)
        before = _handlers()
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except ray.exceptions.AuthenticationError as error:
            raise self._not_accepted(error) from None
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise (self._not_accepted(error) if reached else self._no_cluster(error)) from None
        finally:
            for number, handler in before.items():  # Ray's own prints a trace of C++ and skips all cleaning up
                signal.signal(number, handler)
        self._ours = True

    def _reach(self, address: str) -> bool:
        """Return whether something listens at the address; False if it names no port.

        Raises:
            ConfigError: nothing does, or it does not answer as the head of a cluster. Ray itself would try for minutes.
        """
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host:
            try:
                socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
            except OSError as error:
                raise self._no_cluster(error) from None
        found, answered, said = _ping(address)
        if found and not answered:
            raise ConfigError(
                f"{found} listens, but does not answer as the head of a Ray cluster{said}",
                kind="no-cluster",
                fix="Use the port of the head: 6379, unless 'ray start --head --port' names another; 10001 with ray://."
                " The dashboard (8265) and the ports of other processes are not it.",
            )
        return bool(host)

    def _not_accepted(self, error: BaseException) -> ConfigError:
        return ConfigError(
            f"the Ray cluster at {self.address!r} did not accept this machine ({first_line(error)})",
            kind="no-cluster",
            fix="Use the versions of Ray and Python of the cluster. If it requires a token, set RAY_AUTH_MODE=token,"
            " and RAY_AUTH_TOKEN_PATH to a file with the token.",
        )

    def _no_cluster(self, error: BaseException) -> ConfigError:
        return ConfigError(
            f"there is no Ray cluster at {self.address!r} ({first_line(error)})",
            kind="no-cluster",
            fix="Start one with 'ray start --head', give its --address, or use --engine local.",
        )

    def run(self, stage: Stage) -> Iterator[Any]:
        """Yield the result of each unit, in order; see `Engine.run`."""
        place = stage.where.place
        self._copied = self._copied or stage.where.copies or not (place is None or place.is_local)
        stage.steps.note("Ray starts its workers")
        with check_of(place) as check:
            resources = needed().over(self.resources)
            self._nodes.refuse_missing(resources, stage.name)
            self._nodes.check(check, resources)
            tasks = Tasks(self._ray, stage, self._nodes, check, resources=resources, max_tasks=self.max_tasks)
            try:
                yield from tasks.results()
            finally:
                tasks.stop()


def _refuse_other(address: str, option: str) -> None:
    """Raise `ConfigError` unless an address is one of a cluster that runs: Ray would start one for some words."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto" and not (host and "/" not in host and port.isdecimal() and 0 < int(port[:9]) < 1 << 16):
        starts = ": it would start a cluster, and Feedmill joins one that runs" if address in ("", "local") else ""
        raise ConfigError(
            f"{option} {address!r} is not the address of a Ray cluster{starts}",
            kind="bad-address",
            fix="Use auto, HOST:PORT or ray://HOST:PORT; start a cluster with 'ray start --head'.",
        )


def _ping(address: str) -> tuple[str, bool, str]:
    """Ask the head of a cluster for a sign of life, in a process that is ended after `_PATIENCE`.

    Returns:
        The address that was found, whether its head has answered, and words for a message. The address is empty if
        there is none, or if the question cannot be put: `ray.init` then says why.
    """
    words = [sys.executable, "-c", _PING_CLIENT if address.startswith("ray://") else _PING, address]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, bufsize=0, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as child:
        assert child.stdout is not None and child.stderr is not None
        try:
            found = (_line(child.stdout, _IMPORT) or "").removeprefix("found").strip()
            if found in ("", "None"):
                return "", False, ""
            answer = _line(child.stdout, _PATIENCE)
            said = child.stderr.read().decode(errors="replace").strip() if answer == "" else ""
        finally:
            child.kill()
    last = said.splitlines()[-1] if said else ""
    if last and not any(name in last for name in ("RpcError", "ConnectionError")):
        return "", False, ""  # a token is missing, or versions differ
    reason = last.rpartition(":")[2].strip()[:200]
    why = f" within {_PATIENCE:g} s" if answer is None else f" ({reason})" if reason else ""
    return found if address == "auto" else address, bool(answer), why


def _line(file: IO[bytes], patience: float) -> str | None:
    """Return the next line of a process; empty if it has ended, None if there is none within these seconds."""
    return file.readline().decode(errors="replace") if select.select([file], [], [], patience)[0] else None


def _handlers() -> dict[int, Any]:
    """Return the handlers of SIGTERM and SIGINT, if this thread can restore them."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
