"""The nodes of a Ray cluster: what they have, and whether they can do the work of this machine.

A node must have the same versions, and must read from the work folder what this machine wrote there. All nodes are
checked before a stage; a node that joins later is checked by its first unit.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import random
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module, metadata
from typing import Any, NamedTuple

from feedmill._version import __version__
from feedmill.errors import ConfigError, FeedmillError
from feedmill.jobs.resources import Resources
from feedmill.storage import LocalStore, Store, open_store
from feedmill.storage.cache.copies import forget_copies
from feedmill.storage.staging import staged

_PACKAGES = (
    *("numpy", "pyarrow", "isal", "backports.zstd"),
    *("regex", "tokenizers", "fastokens", "sentencepiece", "jinja2"),
    *("blingfire", "pygments", "beautifulsoup4", "fasttext-predict", "pycld2"),
)
_ANSWER = 120.0  # seconds that a node has to start a worker and to answer
_FORGET = 10.0
_WATCH = 1.0  # seconds between looks of a worker whether its stage has been stopped
_SHOWN = 4  # nodes in an error


_PASSED = ("FEEDMILL_", "_FEEDMILL_", "AWS_", "GOOGLE_", "AZURE_", "HF_", "MSC_")
"""Beginnings of the names of variables that tasks get from the driver; a node's own processes do not have them."""


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """What a node must have and see: the working directory, a file in the work folder, and versions.

    `variables` are set in the workers. They may be secrets, so they travel in the arguments of tasks, which Ray keeps
    in memory: it writes the variables of a ``runtime_env`` to logs of each node that all users can read.
    """

    here: str
    folder: str
    name: str
    content: bytes
    versions: dict[str, str]
    variables: dict[str, str] = field(default_factory=dict, repr=False)


@contextlib.contextmanager
def check_of(place: Store | None) -> Iterator[NodeCheck]:
    """Write a file to the work folder for the duration of the block, and yield what nodes must have.

    A later process sweeps the file of a killed one. An object in a store would stay for good where verbs share folders,
    and an URL names the same store everywhere: there, a node must get an answer.

    Args:
        place: the work folder; None for a stage without output.
    """
    content = secrets.token_bytes(16)
    with _written(place, content) if isinstance(place, LocalStore) else contextlib.nullcontext("") as name:
        folder = "" if place is None else place.url
        yield NodeCheck(os.getcwd(), folder, name, content, versions(), passed_variables())


def passed_variables() -> dict[str, str]:
    """Return the variables of this process that tasks get."""
    return {name: value for name, value in os.environ.items() if name.startswith(_PASSED)}


_own: dict[str, str | None] = {}
"""In a worker: the values that variables had which a driver has set."""


def set_variables(variables: Mapping[str, str]) -> None:
    """Set these variables in a worker, and restore those that earlier calls set."""
    for name in _own.keys() - variables.keys():
        before = _own.pop(name)
        os.environ.pop(name, None) if before is None else os.environ.update({name: before})
    for name, value in variables.items():
        _own.setdefault(name, os.environ.get(name))
        os.environ[name] = value


@contextlib.contextmanager
def _written(place: LocalStore, content: bytes) -> Iterator[str]:
    place.make_folder()
    with staged(os.path.join(place.root, "node-check")) as path:
        with open(path, "wb") as f:
            f.write(content)
        yield os.path.basename(path)


def complaint(check: NodeCheck) -> str | None:
    """Return what this node lacks; None if nothing."""
    set_variables(check.variables)
    mine = versions()
    other = {name: version for name, version in mine.items() if check.versions.get(name, version) != version}
    if other:
        name, version = min(other.items())
        return f"it has {name} {version}, and this machine {check.versions[name]}"
    if check.folder and not check.name:
        try:
            open_store(check.folder).exists("node-check")
        except FeedmillError as error:
            return f"it does not reach {check.folder} ({first_line(error)})"
        return None
    content = None
    with contextlib.suppress(FeedmillError):
        content = open_store(check.folder).read(check.name) if check.folder else check.content
    return None if content == check.content else f"it does not see {check.folder}"


def unfit(node: str, what: str) -> ConfigError:
    """Return the error for a node that lacks something."""
    return ConfigError(
        f"node {node} cannot do the work: {what}",
        kind="no-cluster",
        fix="Install the same versions on all nodes, and keep inputs and outputs where all nodes see them by one path.",
    )


class Place(NamedTuple):
    """Where a task runs."""

    node: str
    node_id: str
    pid: int


@contextlib.contextmanager
def at_work(check: NodeCheck, name: str) -> Iterator[None]:
    """Let the driver see by `place_of` that this worker is at work on a task, for the duration of the block.

    Raises:
        KeyboardInterrupt: the driver has stopped the stage, before the block or within it.
    """
    notes = _notes()
    if notes is None:
        yield
        return
    with contextlib.suppress(Exception):
        node = sys.modules["ray"].get_runtime_context().get_node_id()
        notes._internal_kv_put(_key(check, name), "\0".join([socket.gethostname(), node, str(os.getpid())]).encode())
    try:
        if _is_stopped(check):
            raise KeyboardInterrupt
        with _interrupted_when(lambda: _is_stopped(check)):
            yield
    finally:
        with contextlib.suppress(Exception):
            notes._internal_kv_del(_key(check, name))


@contextlib.contextmanager
def _interrupted_when(stopped: Callable[[], bool]) -> Iterator[None]:
    """Raise `KeyboardInterrupt` in the block, which the main thread runs, soon after this is true.

    A signal would not do: Ray's workers block it, see ``findings/ray_tasks_block_sigint.sh``.
    """
    ended, guard = threading.Event(), threading.Lock()

    def look() -> None:
        while not ended.wait(_WATCH):
            if stopped():
                with guard:  # not after the block: the next unit of this worker may be one of another stage
                    if not ended.is_set():
                        _thread.interrupt_main()
                return

    threading.Thread(target=look, name="feedmill-stop", daemon=True).start()
    try:
        yield
    finally:
        with guard:
            ended.set()


def stop_work(check: NodeCheck) -> None:
    """Let workers end the units of a stage: those at work are interrupted, others do not begin.

    Ray's own ``cancel`` does that, too. But Ray 2.60 ends its driver if a task is done just when it is canceled gently.
    """
    with contextlib.suppress(Exception):
        _notes()._internal_kv_put(_key(check, "stopped"), b"1")


def _is_stopped(check: NodeCheck) -> bool:
    with contextlib.suppress(Exception):
        return _notes()._internal_kv_get(_key(check, "stopped")) is not None
    return False


def place_of(check: NodeCheck, name: str) -> Place | None:
    """Return where a task runs; None if no worker has begun it."""
    with contextlib.suppress(Exception):
        found = _notes()._internal_kv_get(_key(check, name))
        if found is not None:
            node, node_id, pid = found.decode().split("\0")
            return Place(node, node_id, int(pid))
    return None


def forget_places(check: NodeCheck) -> None:
    """Remove what `stop_work` and workers that were killed have left."""
    with contextlib.suppress(Exception):
        _notes()._internal_kv_del(_key(check, ""), del_by_prefix=True)


def _key(check: NodeCheck, name: str) -> bytes:
    return f"feedmill-{check.content.hex()}-{name}".encode()


def _notes() -> Any:
    """Return the small values that Ray's head keeps for its own libraries; None if this process is not connected.

    Ray's list of tasks, which knows the node of each, needs its dashboard.
    """
    with contextlib.suppress(Exception):
        if "ray" in sys.modules:
            internal_kv: Any = import_module("ray.experimental.internal_kv")
            return internal_kv if internal_kv._internal_kv_initialized() else None
    return None


def versions() -> dict[str, str]:
    """Return the versions of packages that decide the bytes of outputs; without those that are not installed."""
    found = {"feedmill": __version__, "python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an error, at most 200 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _forget_copies(variables: Mapping[str, str]) -> None:
    set_variables(variables)
    forget_copies()


def _kill(process: int, stopped: bool) -> None:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        if stopped:
            with open(f"/proc/{process}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] not in ("T", "t"):
                    return
        os.kill(process, signal.SIGKILL)


def _described(node: Mapping[str, Any]) -> str:
    """Return what a node has, without what each node has for itself."""
    has, labels = node["Resources"], node.get("Labels") or {}
    own = [f"{has.get('CPU', 0):g} cores", f"{has.get('memory', 0) / 2**30:.1f} GiB of memory"]
    names = [name for name in has if name not in ("CPU", "memory", "object_store_memory") and ":" not in name]
    own += [f"{has[name]:g} {name}" for name in names]
    return ", ".join([*own, *(f"{name}={value}" for name, value in labels.items() if not name.startswith("ray.io/"))])


class Nodes:
    """The nodes of the cluster to which this process is connected.

    Args:
        ray: the module.
    """

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._checked: set[tuple[str, str]] = set()

    def slots(self, needs: Resources) -> int:
        """Return the number of tasks with these needs that run at the same time."""
        return sum(needs.at_once(node["Resources"]) for node in self._fitting(needs))

    def largest_memory(self, needs: Resources) -> int:
        """Return the memory in bytes of the largest node that has what else a task needs."""
        found = self._fitting(replace(needs, memory=None))
        return max((int(node["Resources"].get("memory", 0)) for node in found), default=0)

    def _fitting(self, needs: Resources) -> list[dict[str, Any]]:
        """Return the nodes that have what a task needs."""
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        return [node for node in alive if needs.fit(node["Resources"], node.get("Labels") or {})]

    def refuse_missing(self, needs: Resources, stage: str) -> None:
        """Raise `ConfigError` if no node has what a task of a stage needs, and none will: Ray would wait for ever.

        Where an autoscaler may add nodes, it decides.
        """
        if self._fitting(needs) or self._scales():
            return
        nodes = [_described(node) for node in self._ray.nodes() if node["Alive"]]
        shown = "; ".join([*nodes[:_SHOWN], *([f"{len(nodes) - _SHOWN} more"] if len(nodes) > _SHOWN else [])])
        raise ConfigError(
            f"no node of the cluster has what a unit of {stage} needs: {needs}. The nodes have {shown or 'nothing'}",
            kind="no-resources",
            fix="Declare less, or start a node that has it: ray start --num-cpus --num-gpus --resources --labels.",
        )

    def _scales(self) -> bool:
        """Return whether the cluster has an autoscaler that may add nodes."""
        with contextlib.suppress(Exception):  # another release of Ray, or a client
            return import_module("ray._private.state").state.get_max_resources_from_cluster_config() is not None
        return False

    def another(self, node: str, needs: Resources) -> Any:
        """Return a scheduling strategy for a node except this one that has what a task needs; None if none is there.

        It is one with a free core if there is one: what runs on another may be stopped, too, and never end.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        fit = [found["NodeID"] for found in self._fitting(needs) if found["NodeID"] != node]
        free: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # another release of Ray, or a client
            free = import_module("ray._private.state").available_resources_per_node()
        fit = [name for name in fit if needs.at_once(free.get(name, {}))] or fit
        return NodeAffinitySchedulingStrategy(random.SystemRandom().choice(fit), soft=True) if fit else None

    def check(self, check: NodeCheck, needs: Resources) -> None:
        """Raise `ConfigError` if a node that may run such tasks does not pass.

        Nodes that have passed for this folder are not asked again.
        """
        ray = self._ray
        names = {node["NodeID"]: node["NodeManagerHostname"] for node in self._fitting(needs)}
        errors = ray.exceptions
        lost = (errors.NodeDiedError, errors.TaskUnschedulableError, errors.WorkerCrashedError)
        nodes = [node for node in names if (node, check.folder) not in self._checked]
        for node, answer in self._call(nodes, complaint, check).items():
            try:
                found = ray.get(answer, timeout=_ANSWER)
            except lost:
                continue  # the node is gone, or is checked by its first unit
            except Exception as error:  # the package is absent, or does not fit
                found = f"it cannot run Feedmill ({first_line(error)})"
            if found is not None:
                raise unfit(names[node], found)
            self._checked.add((node, check.folder))

    def forget_copies(self) -> None:
        """Remove the copies of unfinished work on all nodes. What a lost node has is evicted from its cache later."""
        with contextlib.suppress(Exception):
            answers = list(self._call(self._names(), _forget_copies, passed_variables()).values())
            self._ray.wait(answers, num_returns=len(answers), timeout=_FORGET)

    def kill(self, places: Iterable[Place], *, stopped: bool = False) -> None:
        """Kill the processes of tasks; with `stopped`, only those that a signal has stopped. It needs no core."""
        for place in places:
            with contextlib.suppress(Exception):  # the node may be gone
                self._call([place.node_id], _kill, place.pid, stopped)

    def _names(self) -> dict[str, str]:
        """Return the names of the nodes that run units, by their ids."""
        nodes = [n for n in self._ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) > 0]
        return {n["NodeID"]: n["NodeManagerHostname"] for n in nodes}

    def _call(self, nodes: Iterable[str], function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """Call a function on each of these nodes; return the references of the answers."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        task, answers = self._ray.remote(function), {}
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            options = task.options(num_cpus=0, max_retries=0, scheduling_strategy=there)
            answers[node] = options.remote(*arguments)
        return answers
