"""Under torch.distributed: ranks are found, streams are as planned, epochs end together, a bad sample stops nobody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from feedmill.loading.loader import Loader
from helpers.fakes import FakePlan
from helpers.forked_ranks import run_groups

pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("size", "length", "remainder"),
    [
        (2, 41, "pad"),
        pytest.param(2, 43, "uneven", marks=pytest.mark.slow),
        pytest.param(4, 50, "pad", marks=pytest.mark.slow),
        pytest.param(4, 50, "drop", marks=pytest.mark.slow),
    ],
)
def test_a_group_of_processes(size: int, length: int, remainder: str, tmp_path: Path) -> None:
    bad = [20, 30]
    common = {"meet": f"file://{tmp_path / 'meet'}", "size": size, "length": length, "bad": bad, "remainder": remainder}
    (ends,) = run_groups("distributed_rank.py", [[{**common, "rank": rank} for rank in range(size)]])
    steps = {len(seen) for seen, _, _ in ends}
    assert len(steps) == 1 and len({json.dumps(state) for _, state, _ in ends}) == 1
    assert sum(failures for _, _, failures in ends) == 2 * len(bad)  # in each of two epochs
    stream = [position for step in range(steps.pop()) for seen, _, _ in ends for position in seen[step]]
    plan = FakePlan(length=length, fails_at=frozenset(bad))
    single = Loader(plan, size * 4, rank=0, world_size=1, remainder=remainder, on_error="substitute")  # type: ignore[arg-type]
    wanted = [
        p for b in single for p, real in zip(b["position"].tolist(), b.get("__mask__", [1] * 16), strict=False) if real
    ]
    assert stream == wanted and len(stream) == (length // (4 * size) * 4 * size if remainder == "drop" else length)
