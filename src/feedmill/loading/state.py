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
from feedmill.planning.nodes.base import LONGEST
from feedmill.planning.plan import Plan
from feedmill.planning.resume import bookmark, changed, differing, digests, reopened

VERSION = 1
_LIMIT = 700
_FRESH = "Load the state that this loader's state_dict() gave, or begin without one."


def make_state(plan: PlanLike, position: int, seed: int) -> dict[str, Any]:
    """A JSON-able dict of less than 1 KB.

    The sources' own fingerprints, which serve to say what changed, are cut to four digits each where they are too long.
    """
    sources = dict(plan.fingerprints)
    short = {}
    if len(json.dumps(sources)) > _LIMIT:
        sources, short = {}, {"parts": digests(sources)}
    return {
        "feedmill_loader": VERSION,
        "position": position,
        "seed": seed,
        "plan": plan.fingerprint,
        "sources": sources,
        **short,
        **(bookmark(plan, position) if isinstance(plan, Plan) else {}),
    }


def read_state(
    state: Mapping[str, Any], plan: PlanLike, seed: int, *, allow_append: bool = False, allow_skip: bool = False
) -> int:
    """The position of `plan` at which `state` goes on; for what the flags allow see `feedmill.planning.resume`.

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
    wanted |= {name: kind for name, kind in {"unskipped": int, "stream": str}.items() if name in state}
    bad = [name for name, kind in wanted.items() if not isinstance(state.get(name), kind)]
    if not bad and not all(isinstance(word, str) for entry in state["sources"].items() for word in entry):
        bad = ["sources"]
    if bad:
        raise ConfigError(f"the loader's state is damaged at: {', '.join(bad)}", kind="bad-state", fix=_FRESH)
    position = int(state["position"])
    if state["plan"] == plan.fingerprint:
        pass
    elif isinstance(plan, Plan):
        position = reopened(plan, state, allow_append=allow_append, allow_skip=allow_skip)
    else:
        kept = str(state.get("parts", ""))
        changes = (
            plan.explain_change(dict(state["sources"])) if state["sources"] else differing(plan.fingerprints, kept)
        )
        raise changed(changes or [f"its fingerprint was {state['plan']} and is {plan.fingerprint}"])
    if state["seed"] != seed:
        raise changed([f"the transform's seed was {state['seed']} and is {seed}"])
    end = LONGEST if plan.length is None else plan.length
    if not 0 <= position <= end:
        raise ConfigError(
            f"the loader's state is at position {position}, the plan has {end} samples",
            kind="bad-state",
            fix=_FRESH,
        )
    return position
