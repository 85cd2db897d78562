"""The engine of Ray clusters: ``--engine ray`` runs units as tasks, and gets only their facts back.

Units run as plain tasks with declared processors and memory, in processes that Ray keeps warm (`ray_tasks.py`), on
nodes that were checked (`ray_nodes.py`). Nothing of the data goes through Ray's object store.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

from feedmill.errors import ConfigError, MissingExtra
from feedmill.jobs.engine import Engine, Stage
from feedmill.jobs.ray_nodes import Nodes, check_of, first_line
from feedmill.jobs.ray_tasks import Tasks

_PASSED = ("FEEDMILL_", "_FEEDMILL_", "AWS_", "GOOGLE_", "AZURE_", "HF_", "MSC_")
"""Beginnings of the names of variables that tasks get from the driver; a node's own processes do not have them."""
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # would copy the environment of `uv run` to each node
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # lines that Ray would print on stdout, among the JSON of a verb
}
"""Settings of Ray in this process, unless the user has set them."""
_PATIENCE = 10.0  # seconds that the address has to answer


class RayEngine(Engine):
    """Engine of a Ray cluster that is running.

    Args:
        address: ``auto`` for the cluster of this machine, or of ``RAY_ADDRESS``; ``host:port``; ``ray://host:port``.
        max_tasks: tasks at the same time; None for what the cluster has processors for.
        cpus: processors of a task.
        memory: bytes that a task needs at most, for Ray's scheduler; None for no declaration.
        work: see `Engine`.

    Raises:
        MissingExtra: Ray is not installed.
        ConfigError: there is no cluster at the address, or a node cannot do the work.
    """

    name = "ray"

    def __init__(
        self,
        address: str = "auto",
        *,
        max_tasks: int | None = None,
        cpus: float = 1.0,
        memory: int | None = None,
        work: str | None = None,
    ) -> None:
        super().__init__(work)
        if max_tasks is not None and max_tasks < 1:
            raise ConfigError(f"--max-tasks {max_tasks} is invalid", fix="Use at least 1.")
        self.address, self.max_tasks, self.cpus, self.memory = address, max_tasks, cpus, memory
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

    def _connect(self) -> None:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        try:
            import ray
        except ImportError:
            raise MissingExtra("--engine ray needs Ray, which is not installed", "ray") from None
        self._ray, self._nodes = ray, Nodes(ray, self.cpus)
        if ray.is_initialized():
            return
        reached = self._reach()
        variables = {name: value for name, value in os.environ.items() if name.startswith(_PASSED)}
        before = _handlers()
        try:
            ray.init(
                address=self.address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                runtime_env={"env_vars": variables} if variables else None,
            )
        except ray.exceptions.AuthenticationError as error:
            raise self._not_accepted(error) from None
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise (self._not_accepted(error) if reached else self._no_cluster(error)) from None
        finally:
            for number, handler in before.items():  # Ray's own prints a trace of C++ and skips all cleaning up
                signal.signal(number, handler)
        self._ours = True

    def _reach(self) -> bool:
        """Return whether something listens at the address; False if it names no port.

        Raises:
            ConfigError: nothing does. Ray itself would try for minutes.
        """
        host, _, port = self.address.removeprefix("ray://").rpartition(":")
        if host and port.isdigit():
            try:
                socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
            except OSError as error:
                raise self._no_cluster(error) from None
            return True
        return False

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
        with check_of(place) as check:
            self._nodes.check(check)
            tasks = Tasks(
                self._ray, stage, self._nodes, check, cpus=self.cpus, memory=self.memory, max_tasks=self.max_tasks
            )
            try:
                yield from tasks.results()
            finally:
                tasks.stop()


def _handlers() -> dict[int, Any]:
    """Return the handlers of SIGTERM and SIGINT, if this thread can restore them."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
