#!/usr/bin/env bash
# datasets' interleave_datasets without probabilities stops at another sample for streamed datasets than for stored ones.
#
# Stored datasets end after a whole round, streamed ones with the last sample of the first dataset that ends: the others
# lack one sample each. With probabilities, and with the other stopping strategies, both give the same samples.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0
cd "$work"
HF_HOME="$work/home" HF_HUB_OFFLINE=1 "$work/venv/bin/python" - <<'PYTHON'
import datasets

datasets.disable_progress_bars()
stored = [datasets.Dataset.from_dict({"x": [f"{name}{n}" for n in range(10)]}) for name in "abcdefgh"]
streamed = [one.to_iterable_dataset() for one in stored]


def drawn(sources, **options):
    return [row["x"] for row in datasets.interleave_datasets(sources, seed=0, **options)]


found = {}
for strategy in ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement"):
    for probabilities in (None, [1 / 8] * 8):
        options = {"probabilities": probabilities, "stopping_strategy": strategy}
        a, b = drawn(stored, **options), drawn(streamed, **options)
        assert a[: len(b)] == b, "changed"
        found[strategy, probabilities is not None] = len(a), len(b)
print(f"datasets {datasets.__version__}, 8 datasets of 10; (strategy, probabilities given) -> stored, streamed: {found}")
assert found.pop(("first_exhausted", False)) == (80, 73), "changed"
assert all(a == b for a, b in found.values()), "changed"
PYTHON
