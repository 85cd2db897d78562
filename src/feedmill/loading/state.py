"""The state of a loader as JSON data: a position, and the fingerprint and the outline of the plan.

`Loader.state_dict` and `Loader.load_state_dict` use this module. The plan is a pure function of the position, so a
state needs no buffers and no generator states, and does not depend on the number of ranks or workers or on the batch
size. All ranks have the same state after the same step, so any one of them may save it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feedmill.errors import ConfigError
from feedmill.loading.plan import PlainPlan, PlannedByReading, completed
from feedmill.planning.nodes.base import LONGEST
from feedmill.planning.resuming.resume import Allowed, changed

VERSION = 2
NOTHING_ALLOWED = Allowed()
_FIX = "Load the state that this loader's state_dict() returned, or begin without one."


def make_state(plan: PlainPlan, position: int, seed: int) -> dict[str, Any]:
    """Return the state as JSON data: a few hundred bytes, plus about 35 for each source of the plan.

    With a shuffle of shards, up to 3 bytes more for each shard.
    """
    own = {"feedmill_loader": VERSION, "position": position, "seed": seed, "plan": plan.fingerprint}
    return {**own, **completed(plan).bookmark(position)}


def read_states(states: Sequence[Any], plan: PlainPlan, seed: int, allowed: Allowed = NOTHING_ALLOWED) -> list[int]:
    """Return the position of `plan` at which each state resumes.

    States are read from the last position down, so that a proof that two plans agree is made once for all of them.

    Raises:
        ConfigError: as `read_state`.
    """
    proven: dict[str, int] = {}

    def saved_position(state: Any) -> int:
        position = state.get("position") if isinstance(state, Mapping) else None
        return position if isinstance(position, int) else 0

    complete = [_with_outline(state, states[0]) for state in states]
    order = sorted(range(len(complete)), key=lambda number: saved_position(complete[number]), reverse=True)
    positions = {number: read_state(complete[number], plan, seed, allowed, proven) for number in order}
    return [positions[number] for number in range(len(complete))]


def read_state(
    state: Mapping[str, Any],
    plan: PlainPlan,
    seed: int,
    allowed: Allowed = NOTHING_ALLOWED,
    proven: dict[str, int] | None = None,
) -> int:
    """Return the position of `plan` at which `state` resumes.

    Args:
        state: the state of a loader.
        plan: the plan of this loader.
        seed: seed of this loader's transform.
        allowed: permitted differences; see `feedmill.planning.resuming.resume`.
        proven: positions up to which plans are proven to agree; see `feedmill.planning.resuming.resume`.

    Raises:
        ConfigError: this is not the state of a loader, or it is from a newer version, or belongs to another plan; the
            message lists the changes of the plan.
    """
    if not isinstance(state, Mapping) or "feedmill_loader" not in state:
        contents = (
            f"the keys {', '.join(map(str, state)) or 'none'}" if isinstance(state, Mapping) else type(state).__name__
        )
        raise ConfigError(f"this is not the state of a feedmill loader (found {contents})", kind="bad-state", fix=_FIX)
    version = state["feedmill_loader"]
    if version != VERSION:
        raise ConfigError(
            f"the loader's state has version {version!r}, this release reads version {VERSION}",
            kind="bad-state",
            fix="Resume with the release that saved it.",
        )
    invalid = _invalid_entries(state)
    if invalid:
        raise ConfigError(f"the loader's state is corrupt at: {', '.join(invalid)}", kind="bad-state", fix=_FIX)
    position = int(state["position"])
    other_seed = changed([f"the transform's seed was {state['seed']} and is {seed}"])
    if state["seed"] != seed and allowed.change:
        raise other_seed
    if state["plan"] != plan.fingerprint:
        position = completed(plan).reopened(state, allowed, {} if proven is None else proven)
    if state["seed"] != seed:
        raise other_seed
    if isinstance(plan, PlannedByReading):
        plan.use_landmark(state)
    end = LONGEST if plan.length is None else plan.length
    if not 0 <= position <= end:
        raise ConfigError(
            f"the loader's state is at position {position}, the plan has {end} samples",
            kind="bad-state",
            fix=_FIX,
        )
    return position


def _with_outline(state: Any, first: Any) -> Any:
    """Return the state with the plan's outline, which `Checkpoint` keeps in the first of all ranks' states only."""
    if not (isinstance(state, Mapping) and isinstance(first, Mapping)) or state.get("plan") != first.get("plan"):
        return state
    return {**{name: first[name] for name in ("tree", "sources") if name in first}, **state}


def _invalid_entries(state: Mapping[str, Any]) -> list[str]:
    """Return the names of the entries of a state that are missing or have the wrong type."""
    types: dict[str, type] = {"position": int, "seed": int, "plan": str}
    optional = {"tree": str, "sources": Mapping, "unskipped": int, "stream": str, "skip": str, "skipped": str}
    types |= {name: kind for name, kind in optional.items() if name in state}
    invalid = [name for name, kind in types.items() if not isinstance(state.get(name), kind)]
    sources = state.get("sources")
    if isinstance(sources, Mapping) and not all(isinstance(text, str) for entry in sources.items() for text in entry):
        invalid.append("sources")
    return invalid
