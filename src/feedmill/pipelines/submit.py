"""Submission of a pipeline: to Slurm as a chain of job arrays, to Kubernetes as a job of KubeRay.

Each step is an array of parts for each stage of its verb, and a job that finishes the step; each waits until all before
it have succeeded (``afterok``), and leaves the queue if one has not. Scripts, logs and the ids of the jobs are in a
folder beside the pipeline. What is finished is known from the manifest and the marks of the parts, never from the ids.

A job is listed before it is submitted. If the submitter dies before it knows the id, the job is recognized by its name
and its script. A part that was submitted three times without finishing is not submitted again.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import orjson
import yaml

from feedmill.errors import ConfigError, DataError, NotFound, StorageError, did_you_mean
from feedmill.jobs.work import alone
from feedmill.pipelines.options import Run
from feedmill.pipelines.pipeline import VERBS, Step
from feedmill.storage import LocalStore, Store, open_store, split_url
from feedmill.structs import decode_as

_PARTS = _WORKERS = 16
_JOBS = "submitted.json"
"""The list of submitted jobs, in the folder of scripts and logs."""
_ENDED = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "REVOKED",
        "SPECIAL_EXIT",
        "TIMEOUT",
    ]
)
"""States of Slurm's jobs that neither wait nor run."""
_QUEUE = ("--me", "--noheader", "--array", "--states=all", "--format=%F|%K|%T|%r|%j|%o")
_WAITS = 240
"""How often the queue is read, twice a second, until cancelled jobs have left it: longer than Slurm's ``KillWait``."""
_SHOWN = 8
_TRIES = 3
"""How often a part is submitted."""
_TAIL = 1000
"""Bytes of the end of a log in which its last line is looked for."""
_OF_KUBERNETES = ("image", "volume", "max_nodes", "apply")
_OF_SLURM = ("parts", "array_limit", "partition", "account", "qos", "time", "sbatch")
_OF_BOTH = ("print_scripts", "cancel", "cpus", "mem")


@dataclass(slots=True)
class Submission:
    """What was submitted, and what waits or runs.

    Attributes:
        folder: of the scripts, their logs, and the ids of the jobs.
        scripts: name of each script that was written or printed -> its text.
        jobs: number of tasks that this run has submitted, cancelled or applied, by step.
        states: step -> state as the scheduler calls it -> number of tasks.
        ended: tasks that ended without success, each with its state and the last line of its log, and how many waited
            for them or never began.
        notes: what was done, for people.
    """

    folder: str
    scripts: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)
    states: dict[str, dict[str, int]] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Job(msgspec.Struct):
    """A job of Slurm, or an array. The id is empty if the submitter ended before it knew it."""

    id: str
    name: str
    step: str
    shift: int = 0
    """The part of a task is its index and this."""


class _Submitted(msgspec.Struct):
    """The jobs of the last submission, as they are stored.

    Attributes:
        stage: the step and stage that the last submission began with, and their parts.
        tries: how often in a row each part of that stage was submitted; 0 is the finish.
    """

    version: int
    jobs: list[_Job] = []
    stage: str = ""
    tries: dict[int, int] = {}


class Left(NamedTuple):
    """What is left of a step: its stage, the parts that have not finished that, and whether no other stage follows."""

    stage: str
    parts: list[int]
    last: bool


def refuse_others(options: Run) -> None:
    """Raise `ConfigError` if an option does not fit ``--submit``."""
    known = {None: (), "slurm": _OF_SLURM + _OF_BOTH, "kubernetes": _OF_KUBERNETES + _OF_BOTH}
    if options.submit not in known:
        hint = did_you_mean(str(options.submit), ["slurm", "kubernetes"])
        raise _bad(f"pipelines cannot be submitted to {options.submit!r}{hint}", "Use slurm or kubernetes.")
    fitting = known[options.submit]
    for name in (*_OF_SLURM, *_OF_KUBERNETES, *_OF_BOTH):
        if name not in fitting and getattr(options, name):
            where = "slurm" if name in _OF_SLURM else "kubernetes" if name in _OF_KUBERNETES else "slurm or kubernetes"
            raise _bad(f"--{name.partition('_s')[0].replace('_', '-')} is an option of --submit {where}")
    if options.submit is not None and options.overwrite:
        raise _bad("--overwrite cannot be submitted", "Delete the outputs of the steps that are to run again.")


def _bad(what: str, fix: str = "Add --submit, or omit the option.") -> ConfigError:
    return ConfigError(what, kind="bad-option", fix=fix)


def submit(options: Run, steps: Sequence[Step], look: Callable[[int], Left | None]) -> Submission:
    """Submit steps, or show or cancel what is submitted.

    Args:
        options: of the verb ``run``.
        steps: those that are not up to date.
        look: returns, for a number of parts, what is left of the first of the steps; None if nothing is after all.

    Raises:
        NotFound: a program of the scheduler is missing.
        ConfigError: an option does not fit, or the pipeline is not in a folder.
        StorageError: a program of the scheduler ended with an error.
        DataError: the list of submitted jobs is corrupt, or a part did not finish in three submissions.
    """
    if "://" in os.fspath(options.pipeline):
        raise _bad("the scripts and logs of jobs lie beside the pipeline, which is not in a folder", "Copy it to one.")
    if options.submit == "kubernetes":
        return _kubernetes(options, steps)
    slurm = _Slurm(options)
    if options.print_scripts:
        slurm.plan(steps, list(range(1, slurm.parts + 1)), last=False)
        slurm.done.scripts = dict(slurm.printed())
        return slurm.done
    if options.dry_run:
        slurm.running()
        return slurm.done
    os.makedirs(slurm.place, exist_ok=True)
    with alone(slurm.store, _JOBS):  # two that submit at once would submit everything twice
        running = slurm.running()
        if options.cancel:
            slurm.cancel(running)
        elif running:
            slurm.done.notes.append("jobs of the last submission are in the queue: nothing was submitted")
        elif steps and (missing := look(slurm.parts)) is not None:
            tries = slurm.tries_of(steps[0], missing)
            slurm.plan(steps, missing.parts, last=missing.last)
            slurm.submit(*tries)
    return slurm.done


class _Slurm:
    """Slurm's jobs of a pipeline."""

    def __init__(self, options: Run) -> None:
        self.options, self.parts = options, options.parts or _PARTS
        self.pipeline = os.path.abspath(options.pipeline)
        folder, name = split_url(self.pipeline)
        self.name = _plain(name.rpartition(".")[0] or name)
        self.place = os.path.join(folder, f"{self.name}.slurm")
        self.store: Store = LocalStore(self.place)
        self.done = Submission(self.place)
        self.planned: list[tuple[_Job, str, list[int], int]] = []
        """Each job without its id, the text of its script, its tasks, and where in this list what it waits for ends."""

    def running(self) -> list[_Job]:
        """Return the jobs of the last submission that wait or run, and note the states of all."""
        listed = self._submitted().jobs
        if not listed:
            return []
        known = {job.id: job for job in listed if job.id}
        nameless = {self._script_of(number, job): job for number, job in enumerate(listed) if not job.id}
        live: dict[str, _Job] = {}
        ended, waited, never = list[tuple[str, str]](), 0, 0
        states: dict[str, Counter[str]] = {}
        for line in _call("squeue", *_QUEUE).splitlines():
            number, task, state, why, rest = line.split("|", 4)
            name, _, script = rest.partition("|")
            job = known.get(number)
            if job is None and state not in _ENDED and script.strip() in nameless:
                job = known[number] = msgspec.structs.replace(nameless[script.strip()], id=number)
            if job is None or job.name != name.strip():  # another job: ids begin again with a new database
                continue
            waits = state == "PENDING" and why not in ("None", "")
            states.setdefault(job.step, Counter())[f"{state} ({why})" if waits else state] += 1
            if state not in _ENDED:
                live[job.id] = job
            elif why == "DependencyNeverSatisfied":
                waited += 1
            elif state == "CANCELLED" and why not in ("None", ""):
                never += 1
            elif state != "COMPLETED":
                what = f"part {int(task) + job.shift}" if task.isdigit() else "the finish"
                log = f"{job.name}-{number}" + (f"_{task}" if task.isdigit() else "")
                ended.append((f"{job.step}: {what} is {state} ({why})", log))
        more = [f"and {len(ended) - _SHOWN} more"] if len(ended) > _SHOWN else []
        self.done.ended = [*(what + self._last_line(log) for what, log in ended[:_SHOWN]), *more]
        if never:
            self.done.ended.append(f"tasks that were cancelled before they began: {never}")
        if waited:
            self.done.ended.append(f"tasks that waited for these, and have left the queue: {waited}")
        self.done.states = {step: dict(sorted(counts.items())) for step, counts in states.items()}
        return list(live.values())

    def _last_line(self, log: str) -> str:
        """Return what a log ends with, to be appended; empty if it has no text, or is not there."""
        try:
            with open(os.path.join(self.place, "logs", f"{log}.log"), "rb") as f:
                f.seek(max(0, os.fstat(f.fileno()).st_size - _TAIL))
                lines = f.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return f": {lines[-1].strip()}" if lines else ""

    def _script_of(self, number: int, job: _Job) -> str:
        return os.path.join(self.place, f"{number + 1:02}-{job.name}.sbatch")

    def cancel(self, running: Sequence[_Job]) -> None:
        """Cancel jobs, wait until they have ended, and forget how often parts were submitted."""
        submitted = self._submitted()
        if submitted.tries:
            self._store(submitted.jobs, "", {})
            self.done.notes.append("parts that did not finish may be submitted again")
        if not running:
            self.done.notes.append("no job waits or runs: nothing was cancelled")
            return
        _call("scancel", *[job.id for job in running])
        for _ in range(_WAITS):
            left = self.running()
            if not left:
                self.done.ended.clear()
                self.done.jobs = dict(Counter(job.step for job in running))
                self.done.notes.append(f"cancelled: {', '.join(job.id for job in running)}")
                return
            time.sleep(0.5)
        raise StorageError(
            f"the jobs {', '.join(job.id for job in left)} still run after scancel", fix="See squeue --me, and repeat."
        )

    def plan(self, steps: Sequence[Step], first: Sequence[int], *, last: bool) -> None:
        """Plan the chain. The first array of the first step has the parts `first`; with `last` no other follows."""
        size = self._largest() - 1  # an index is below MaxArraySize
        for step in steps:
            stages = 1 if last else VERBS[step.verb].stages(step.options)
            for stage in range(1, stages + 1):
                self._plan_parts(step, stage, stages, first, size)
                first = range(1, self.parts + 1)
            name = f"{self._named(step)}-finish"
            after = len(self.planned)
            self.planned.append((_Job("", name, step.name), self._script(name, step, ["--finish"]), [], after))
            last = False

    def _plan_parts(self, step: Step, stage: int, stages: int, parts: Sequence[int], size: int) -> None:
        after = len(self.planned)
        groups: dict[int, list[int]] = {}
        for part in parts:
            groups.setdefault((part - 1) // size, []).append((part - 1) % size + 1)
        for group, tasks in groups.items():
            name = (
                self._named(step) + (f"-{stage}" if stages > 1 else "") + (f"-{group + 1}" if len(groups) > 1 else "")
            )
            text = self._script(name, step, ["--part", f"{{part}}/{self.parts}"], tasks, group * size)
            self.planned.append((_Job("", name, step.name, group * size), text, tasks, after))

    def tries_of(self, step: Step, left: Left) -> tuple[str, dict[int, int]]:
        """Return the stage of a step that is left, and how often its parts have been submitted, with this time.

        Raises:
            DataError: a part has not finished in `_TRIES` submissions.
        """
        stage, submitted = f"{step.name}: {left.stage}, {self.parts} parts", self._submitted()
        before = submitted.tries if submitted.stage == stage else {}
        tries = {part: 1 + before.get(part, 0) for part in left.parts or [0]}
        failing = [part for part, count in tries.items() if count > _TRIES]
        if not failing:
            return stage, tries
        shown = [self._failed(step, part, submitted.jobs) for part in failing[:_SHOWN]]
        more = [f"and {len(failing) - _SHOWN} more"] if len(failing) > _SHOWN else []
        raise DataError(
            f"{left.stage}: submitted {_TRIES} times, and not finished: {'; '.join([*shown, *more])}",
            file=step.at,
            kind="worker-died",
            fix=f"Fix the cause; see {os.path.join(self.place, 'logs')}. To submit it all the same, first run this with"
            " --cancel, which forgets the number.",
        )

    def _failed(self, step: Step, part: int, jobs: Sequence[_Job]) -> str:
        """Return a part, or the finish, with the end of its last log."""
        if not part:
            last = next((job for job in jobs if job.step == step.name and job.name.endswith("-finish")), None)
            return "the finish" + ("" if last is None else self._last_line(f"{last.name}-{last.id}"))
        size = self._largest() - 1
        name, shift = f"part {part}", (part - 1) // size * size
        last = next((job for job in jobs if job.step == step.name and job.shift == shift), None)
        return name if last is None else name + self._last_line(f"{last.name}-{last.id}_{part - shift}")

    def _store(self, jobs: Sequence[_Job], stage: str, tries: dict[int, int]) -> None:
        self.store.write_bytes(_JOBS, msgspec.json.encode(_Submitted(1, [*jobs], stage, tries)))

    def submit(self, stage: str, tries: dict[int, int]) -> None:
        """Submit the planned jobs; if one is refused, cancel those before it.

        Args:
            stage, tries: of `tries_of`.
        """
        jobs: list[_Job] = []
        os.makedirs(os.path.join(self.place, "logs"), exist_ok=True)
        before = self._submitted()
        try:
            for number, (job, text, tasks, after) in enumerate(self.planned):
                script = self._script_of(number, job)
                self.store.write_bytes(os.path.basename(script), text.encode())
                self._store([*jobs, job], stage, tries)
                words = ["--parsable", *self._dependency([*jobs], number, after), script]
                job.id = _call("sbatch", *words).strip().partition(";")[0]
                jobs.append(job)
                self.done.scripts[os.path.basename(script)] = text
                self.done.jobs[job.step] = self.done.jobs.get(job.step, 0) + max(1, len(tasks))
            self._store(jobs, stage, tries)
        except BaseException:
            if ids := {job.id for job in (*jobs, *self.running())}:
                _call("scancel", *sorted(ids))
            self._store(jobs, before.stage, before.tries)
            raise
        count = sum(self.done.jobs.values())
        self.done.notes.append(f"submitted: {len(jobs)} jobs with {count} tasks")

    def _dependency(self, jobs: Sequence[_Job], number: int, after: int) -> list[str]:
        """Return the option with what a job waits for: all of the group before its own, to succeed."""
        begins = self.planned[after - 1][3] if after else 0
        ids = ":".join(job.id for job in jobs[begins:after])
        wait = [f"afterok:{ids}"] if ids else []
        if number > after and self.options.array_limit:  # the limit is one of an array, so its arrays take turns
            wait.append(f"afterany:{jobs[number - 1].id}")
        return [f"--dependency={','.join(wait)}"] if wait else []

    def _named(self, step: Step) -> str:
        return f"{self.name}-{_plain(step.name)}"

    def _script(self, name: str, step: Step, words: list[str], tasks: Sequence[int] = (), shift: int = 0) -> str:
        options, logs = self.options, os.path.join(self.place, "logs").replace("%", "%%")
        settings = {
            "job-name": name,
            "chdir": os.getcwd(),
            "output": os.path.join(logs, "%x-%A_%a.log" if tasks else "%x-%j.log"),
            "array": f"{_ranges(tasks)}{f'%{options.array_limit}' if options.array_limit else ''}" if tasks else None,
            "kill-on-invalid-dep": "yes",
            "partition": options.partition,
            "account": options.account,
            "qos": options.qos,
            "time": options.time,
            **self._amounts(step),
        }
        lines = [f"#SBATCH {shlex.quote(f'--{key}={value}')}" for key, value in settings.items() if value is not None]
        lines += [f"#SBATCH {option}" for option in options.sbatch]
        verb = [sys.executable, "-m", "feedmill", "run", self.pipeline, "--only", step.name, "--engine", "part", *words]
        command = shlex.join(verb).replace("'{part}/", '"$part"\'/')
        return "\n".join(
            [
                "#!/bin/bash",
                *lines,
                *([f"part=$((SLURM_ARRAY_TASK_ID + {shift}))"] if tasks else []),
                "status=0",
                f"{command} || status=$?",
                "# 3: this job has done its share, and stages are left for the next one. 4: it skipped invalid inputs.",
                'if [ "$status" = 3 ] || [ "$status" = 4 ]; then status=0; fi',
                'exit "$status"',
                "",
            ]
        )

    def _amounts(self, step: Step) -> dict[str, Any]:
        """Return what a task asks for: the options, else what a unit of the step needs."""
        need, options = step.resources, self.options
        _refuse_ray_only(step, "use --sbatch for Slurm's own, such as --sbatch=--constraint=NAME")
        memory = None if need.memory is None else f"{-(-need.memory >> 20)}M"
        return {
            "cpus-per-task": options.cpus or (None if need.cpus is None else math.ceil(need.cpus)),
            "mem": options.mem or memory,
            "gpus-per-task": None if need.gpus is None else math.ceil(need.gpus),
            "ntasks": None if need.gpus is None else 1,  # which --gpus-per-task requires
        }

    def _largest(self) -> int:
        if self.options.print_scripts and shutil.which("scontrol") is None:
            return 1001  # Slurm's default
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _call("scontrol", "show", "config"), re.MULTILINE)
        if found is None or int(found[1]) < 2:
            raise StorageError(
                "scontrol names no MaxArraySize for job arrays", fix="Ask for it to be set in slurm.conf."
            )
        return int(found[1])

    def printed(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the text of each planned script, with what it waits for."""
        for number, (job, text, _, after) in enumerate(self.planned):
            names = [other[0].name for other in self.planned[self.planned[after - 1][3] if after else 0 : after]]
            note = f"# waits for: {', '.join(names)}\n" if names else ""
            yield os.path.basename(self._script_of(number, job)), text.replace("\n", f"\n{note}", 1)

    def _submitted(self) -> _Submitted:
        try:
            return decode_as(self.store.read(_JOBS), _Submitted)
        except NotFound:
            return _Submitted(1)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            file = os.path.join(self.place, _JOBS)
            raise DataError(
                f"the list of submitted jobs is corrupt ({error})",
                file=file,
                fix="See that no job is left (squeue --me), and delete it.",
            ) from None


def _refuse_ray_only(step: Step, fix: str) -> None:
    if step.resources.custom or step.resources.labels:
        raise ConfigError(
            f"the step {step.name!r} needs custom resources or labels of Ray's nodes, which its job would not have",
            file=step.at,
            kind="bad-option",
            fix=f"Remove them, and {fix}.",
        )


def _plain(name: str) -> str:
    """Return a name for jobs and files of scripts."""
    return re.sub(r"[^\w.-]", "_", name)


def _ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as Slurm writes those of an array: ``1-4,7``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in found)


def _call(program: str, *words: str) -> str:
    """Return what a program of a scheduler prints."""
    if shutil.which(program) is None:
        raise NotFound(
            f"there is no program {program!r}",
            fix="Run this where jobs are submitted, or use --print.",
            kind="not-found",
        )
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
        raise StorageError(f"{program} ended with an error: {said}", fix="Correct the options, or ask the site.")
    return done.stdout


def _kubernetes(options: Run, steps: Sequence[Step]) -> Submission:
    folder, file = split_url(os.path.abspath(options.pipeline))
    name = re.sub(r"[^a-z0-9]+", "-", file.rpartition(".")[0].lower()).strip("-")[:40] or "pipeline"
    done = Submission(folder)
    path = f"{name}.rayjob.yaml"
    if options.cancel:
        done.notes.append(
            _call("kubectl", "delete", "--ignore-not-found", f"rayjob/{name}").strip() or "nothing to cancel"
        )
        return done
    if not options.image or not options.volume:
        raise _bad("--submit kubernetes needs --image and --volume", "Give them, such as --volume shared:/shared.")
    done.scripts[path] = _rayjob(name, options, steps)
    if not options.print_scripts and not options.dry_run:
        open_store(folder).write_bytes(path, done.scripts[path].encode())
        where = os.path.join(folder, path)
        done.notes.append(
            _call("kubectl", "apply", "-f", where).strip() if options.apply else f"next: kubectl apply -f {where}"
        )
    return done


def _rayjob(name: str, options: Run, steps: Sequence[Step]) -> str:
    claim, found, path = (options.volume or "").partition(":")
    if not found or not claim or not path.startswith("/"):
        raise _bad(f"--volume {options.volume!r} is not CLAIM:/PATH", "Use, for example, shared:/shared.")
    words = ["feedmill", "run", os.path.abspath(options.pipeline), "--engine", "ray", "--progress", "none"]
    words += [word for step in steps if options.steps for word in ("--only", step.name)]

    for step in steps:
        _refuse_ray_only(step, "edit the groups of workers in what --print shows")
    gpus = math.ceil(max((step.resources.gpus or 0 for step in steps), default=0))

    def pod(role: str, cpus: int, memory: str, gpus: int = 0) -> dict[str, Any]:
        amounts = {"cpu": str(cpus), "memory": memory, **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
        container = {
            "name": f"ray-{role}",
            "image": options.image,
            "workingDir": os.getcwd(),
            "resources": {"requests": amounts, "limits": dict(amounts)},
            "volumeMounts": [{"name": "shared", "mountPath": path}],
        }
        volumes = [{"name": "shared", "persistentVolumeClaim": {"claimName": claim}}]
        return {"spec": {"containers": [container], "volumes": volumes}}

    groups = [  # the autoscaler starts those that units need
        {
            "groupName": role,
            "replicas": 0,
            "minReplicas": 0,
            "maxReplicas": options.max_nodes or _WORKERS,
            "rayStartParams": {},
            "template": pod(role, options.cpus or 8, options.mem or "32Gi", count),
        }
        for role, count in (("workers", 0), *([("gpu-workers", gpus)] if gpus else []))
    ]
    # Units run on the workers: the head must not be preempted.
    head = {"rayStartParams": {"num-cpus": "0"}, "template": pod("head", 2, "8Gi")}
    spec = {
        "entrypoint": f"sh -c {shlex.quote(f'cd {shlex.quote(os.getcwd())} && exec {shlex.join(words)}')}",
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 600,
        "backoffLimit": 3,  # a retry finishes what the killed run left
        "rayClusterSpec": {"enableInTreeAutoscaling": True, "headGroupSpec": head, "workerGroupSpecs": groups},
    }
    job = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": name}, "spec": spec}
    return yaml.safe_dump(orjson.loads(orjson.dumps(job)), sort_keys=False, width=120)
