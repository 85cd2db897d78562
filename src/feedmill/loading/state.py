"""The state of a loader: a position and the name of the plan, as JSON.

Because the plan is a pure function of the position, nothing else has to be saved: no buffers, no generator states, and
nothing that depends on the number of ranks or workers or on the batch size. All ranks have the same state after the
same step, so any one of them may save it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from feedmill.errors import ConfigError
from feedmill.loading.plan import PlanLike

VERSION = 1
_LIMIT = 700
_FRESH = "Load the state that this loader's state_dict() gave, or begin without one."


def make_state(plan: PlanLike, position: int, seed: int) -> dict[str, Any]:
    """A JSON-able dict of less than 1 KB.

    The sources' own fingerprints, which only serve to say what changed, are left out where there are too many.
    """
    sources = dict(plan.fingerprints)
    if len(json.dumps(sources)) > _LIMIT:
        sources = {}
    return {
        "feedmill_loader": VERSION,
        "position": position,
        "seed": seed,
        "plan": plan.fingerprint,
        "sources": sources,
    }


def read_state(state: Mapping[str, Any], plan: PlanLike, seed: int) -> int:
    """The position in `state`.

    Raises:
        ConfigError: the state is not a loader's, is from a newer version, or belongs to another plan; the message says
            what changed in the plan.
    """
    if not isinstance(state, Mapping) or "feedmill_loader" not in state:
        found = (
            f"the keys {', '.join(map(str, state)) or 'none'}" if isinstance(state, Mapping) else type(state).__name__
        )
        raise ConfigError(f"this is not the state of a feedmill loader (found {found})", kind="bad-state", fix=_FRESH)
    version = state["feedmill_loader"]
    if version != VERSION:
        raise ConfigError(
            f"the loader's state has version {version!r}, this release reads version {VERSION}",
            kind="bad-state",
            fix="Resume with the release that saved it.",
        )
    wanted = {"position": int, "seed": int, "plan": str, "sources": Mapping}
    bad = [name for name, kind in wanted.items() if not isinstance(state.get(name), kind)]
    if bad:
        raise ConfigError(f"the loader's state is damaged at: {', '.join(bad)}", kind="bad-state", fix=_FRESH)
    _refuse_changes(state, plan, seed)
    position = int(state["position"])
    if position < 0 or (plan.length is not None and position > plan.length):
        raise ConfigError(
            f"the loader's state is at position {position}, the plan has {plan.length} samples",
            kind="bad-state",
            fix=_FRESH,
        )
    return position


def _refuse_changes(state: Mapping[str, Any], plan: PlanLike, seed: int) -> None:
    changes: list[str] = []
    if state["plan"] != plan.fingerprint:
        # Without the sources' fingerprints (too many to be kept) the plan would call every source new.
        changes = plan.explain_change(dict(state["sources"])) if state["sources"] else []
        changes = changes or [f"its fingerprint was {state['plan']} and is {plan.fingerprint}"]
    elif state["seed"] != seed:
        changes = [f"the transform's seed was {state['seed']} and is {seed}"]
    if changes:
        raise ConfigError(
            f"the plan is not the one that this state was saved with: {'; '.join(changes)}",
            kind="plan-changed",
            fix="Resume with the recipe and the data of the saved run, or begin without a state.",
        )
