"""Read answers from files: our own columns, and the logs of other tools, known by their columns.

| layout | of | group | reward | version |
|---|---|---|---|---|
| `feedmill` | rows with `group` and `reward` | a column | a column, or as given | a column, or as given |
| `verl` | `trainer.rollout_data_dir`, a JSONL file for each step | equal `input` of a step | `score` | `step` |
| `trl` | `log_completions`, a Parquet file for each step | equal `prompt` of a step | as given | `step` |
| `verifiers` | ``traces.jsonl``, an episode on each line | the task's key | sum of score x weight | as given |

`trl` (1.16): the columns of reward functions stand between others that functions log, without a mark, so they are named
if there are several of numbers; their weights are not in the file. It writes the answers of the last generation once
more at each step that generates none: a group whose prompt and answers are there already is left out. Of generations
between two logs it has nothing (findings/trl_completions_log).

`verifiers` (0.4): each path of a trace's messages, from root to leaf, is an answer, as for its trainer; traces with
errors and of agents that are not trained are left out. Log-probabilities there have four decimals, one for each sampled
token; other tokens get 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
import xxhash

from feedmill.errors import ConfigError, DataError
from feedmill.formats.columns import ParquetFile
from feedmill.formats.documents import read_lines, rows_of
from feedmill.storage import Store

Row = Mapping[str, Any]
SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")


@dataclass(slots=True)
class Answers:
    """The answers of a file.

    Attributes:
        layout: name of the layout.
        rows: as `Rollouts.append` takes them.
        left_out: number of answers that were left out, by reason.
        once: whether a group that is there already, in any version, is left out.
    """

    layout: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    once: bool = False


class Given(NamedTuple):
    """What a file may lack.

    Attributes:
        version: of the policy; None if the file says it.
        rewards: columns whose sum is the reward.
    """

    version: int | None = None
    rewards: Sequence[str] = ()


def read_answers(store: Store, path: str, given: Given) -> Answers:
    """Return the answers of a JSONL or Parquet file.

    Raises:
        DataError: the file is damaged, or has no layout that is known (kind ``bad-rollout``).
        ConfigError: something that the file lacks was not given.
    """
    rows = _parquet_rows(store, path) if path.endswith(".parquet") else _lines(store, path)
    where = store.locate(path)
    if not rows:
        raise DataError("the file has no answers", file=where, kind="bad-rollout", fix="Leave it out.")
    columns = dict.fromkeys(name for row in rows for name in row)
    for layout, (marks, read) in _LAYOUTS.items():
        if marks <= columns.keys():
            answers = read(rows, given, where)
            answers.layout = layout
            if given.version is not None:
                for row in answers.rows:
                    row.setdefault("version", given.version)
            if answers.rows and "version" not in answers.rows[0]:
                raise _needed("version", "the version of the policy that made its answers", where, "--policy N")
            return answers
    expected = "; ".join(f"{', '.join(sorted(marks))} ({name})" for name, (marks, _) in _LAYOUTS.items())
    raise DataError(
        f"its columns are {', '.join(map(repr, columns))}: no layout of answers that is known",
        file=where,
        kind="bad-rollout",
        fix=f"Rename columns. Expected: {expected}.",
    )


def _lines(store: Store, path: str) -> list[Row]:
    rows: list[Row] = []
    line = 0
    for block in read_lines(store, path):
        for text in rows_of(bytes(block)):
            line += 1
            if not text.strip():
                continue
            try:
                row = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise _bad_line(f"the line is not JSON ({error})", store.locate(path), line) from None
            if not isinstance(row, dict):
                raise _bad_line("the line is not a JSON object", store.locate(path), line)
            rows.append(row)
    return rows


def _bad_line(what: str, where: str, line: int) -> DataError:
    return DataError(what, file=where, record=f"line {line}", kind="bad-rollout", fix="Correct or remove the line.")


def _parquet_rows(store: Store, path: str) -> list[Row]:
    file = ParquetFile(store, path)
    return [row for block in range(len(file.ends)) for row in file.read(block)[0].to_pylist()]


def _needed(name: str, what: str, where: str, option: str) -> ConfigError:
    return ConfigError(f"the file has no {name!r}: {what}", file=where, kind="bad-option", fix=f"Give {option}.")


def _sum(row: Row, names: Sequence[str]) -> float:
    """Return the sum of the numbers in columns, without missing ones; NaN if all are missing."""
    found = [row[name] for name in names if row.get(name) is not None and not math.isnan(row[name])]
    return float(sum(found)) if found else math.nan


def _digest(value: Any) -> str:
    return str(xxhash.xxh3_128_hexdigest(orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)))


def _own(rows: Sequence[Row], given: Given, where: str) -> Answers:
    for name in given.rewards:
        if all(name not in row for row in rows):
            raise _needed(name, "a column of rewards that was given", where, "--reward with one of its columns")
    sums = ({"reward": _sum(row, given.rewards)} if given.rewards else {} for row in rows)
    return Answers("", [{**row, **own} for row, own in zip(rows, sums, strict=True)])


def _verl(rows: Sequence[Row], given: Given, where: str) -> Answers:
    renamed = {"input": "prompt", "output": "completion", "score": "reward", "step": "version"}
    found = [{renamed.get(name, name): value for name, value in row.items()} for row in rows]
    for row in found:
        row["group"] = f"{row['version']}-{_digest(row['prompt'])}"
    return _own(found, given, where)


def _trl(rows: Sequence[Row], given: Given, where: str) -> Answers:
    rewards = list(given.rewards)
    if not rewards:
        others = [name for name in rows[0] if name not in ("step", "prompt", "completion", "advantage")]
        rewards = [name for name in others if any(isinstance(row.get(name), float) for row in rows)]
        if len(rewards) != 1:
            found = f"its columns of numbers are {', '.join(map(repr, rewards)) or 'none'}"
            raise _needed(
                "reward", f"TRL logs one for each reward function; {found}", where, "--reward for each of them"
            )
    groups: dict[tuple[Any, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["step"], _digest(row["prompt"])), []).append(row)
    out = Answers("", once=True)
    for members in groups.values():
        name = _digest([[row["prompt"], row["completion"]] for row in members])
        out.rows += [{"group": name, "version": row["step"], **row} for row in members]
    return Answers("", _own(out.rows, Given(None, rewards), where).rows, once=True)


def _verifiers(rows: Sequence[Row], given: Given, where: str) -> Answers:  # noqa: ARG001
    out = Answers("")
    for line, row in enumerate(rows, 1):
        for trace in row["traces"]:
            try:
                why = _why_not(trace)
                if why:
                    out.left_out[why] += 1
                else:
                    out.rows += _paths(trace)
            except (KeyError, TypeError, IndexError, AttributeError) as error:
                raise _bad_line(f"it is no trace of verifiers ({type(error).__name__}: {error})", where, line) from None
    return out


def _why_not(trace: Row) -> str:
    """Return why a trace is not trained on; empty if it is."""
    if not trace.get("agent", {}).get("trainable", True):
        return "of an agent that is not trained"
    if not trace["ok"]:
        return "with an error"
    return "" if any(reward is not None for reward in trace["rewards"].values()) else "without a reward"


def _paths(trace: Row) -> Iterator[dict[str, Any]]:
    """Yield an answer for each path from a root of a trace's messages to a leaf that is trained on."""
    nodes = trace["nodes"]
    parents = {node.get("parent") for node in nodes}
    resumed = {
        link["node"] for node in nodes for link in node.get("semantic_parents", ()) if link["type"] == "compaction"
    }
    reward = sum(found["score"] * found.get("weight", 1.0) for found in trace["rewards"].values() if found is not None)
    for leaf in range(len(nodes)):
        links = {link["type"] for link in nodes[leaf].get("semantic_parents", ())}
        if leaf in parents or ("compaction_attempt" in links and leaf not in resumed):
            continue
        path: list[Row] = []
        at: int | None = leaf
        while at is not None:
            path.append(nodes[at])
            at = nodes[at].get("parent")
        path.reverse()
        row = {"group": trace["task"].get("key") or trace["task"]["hash"], "reward": reward}
        row |= {"messages": [node["message"] for node in path], "tools": path[0].get("tools") or None}
        row |= {name: trace.get(name) or None for name in ("metrics", "info")}
        row |= {"task": trace["task"]["data"], "trace": trace["id"]}
        if all(node.get("token_ids") for node in path):
            row["token_ids"] = [token for node in path for token in node["token_ids"]]
            row["loss_mask"] = [kept for node in path for kept in node["mask"]]
            row["logprobs"] = [value for node in path for value in _widened(node)]
        yield row


def _widened(node: Row) -> Iterator[float]:
    """Yield the log-probability of each token of a message, 0 for those that were not sampled."""
    values = iter(node.get("logprobs") or ())
    for sampled in node["mask"]:
        yield next(values, 0.0) if sampled else 0.0


_LAYOUTS: dict[str, tuple[frozenset[str], Callable[[Sequence[Row], Given, str], Answers]]] = {
    "feedmill": (frozenset(("group", "reward")), _own),
    "verl": (frozenset(("input", "output", "score", "step")), _verl),
    "trl": (frozenset(("step", "prompt", "completion", "advantage")), _trl),
    "verifiers": (frozenset(("traces",)), _verifiers),
}
"""Name -> the columns that it is known by, and its reader."""
