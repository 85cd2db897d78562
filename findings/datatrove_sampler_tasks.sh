#!/usr/bin/env bash
# datatrove's `SamplerFilter` draws the same numbers in every task: of each file it keeps the documents of the same lines.
#
# The generator is made with the filter, before the pipeline is copied or sent to the tasks. So a sample of 10 % of eight
# files, read by a task each, has the same lines of all of them, with a seed and without one, which is then drawn once.
# Files that hold sides of one thing, as translations by line, give the same sides.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    datatrove==0.10.1 numpy==2.4.6 regex==2026.11.19 orjson==3.13.0
cd "$work"
cat > sample.py <<'PYTHON'
import json
from importlib.metadata import version
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import SamplerFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

if __name__ == "__main__":
    print("datatrove", version("datatrove"))
    Path("in").mkdir()
    for name in range(8):
        lines = (json.dumps({"id": f"{name}-{line}", "text": f"text {line} of {name}"}) + "\n" for line in range(1000))
        Path(f"in/{name}.jsonl").write_text("".join(lines))
    for seed, workers in ((5, 1), (5, 2), (None, 2)):
        out = f"out-{seed}-{workers}"
        steps = [JsonlReader("in"), SamplerFilter(0.1, seed=seed), JsonlWriter(out, compression=None)]
        LocalPipelineExecutor(steps, tasks=8, workers=workers, logging_dir=f"{out}-log").run()
        kept = [
            {int(json.loads(line)["id"].split("-")[1]) for line in path.read_text().splitlines()}
            for path in sorted(Path(out).iterdir())
        ]
        print(f"datatrove, seed {seed}, {workers} workers: {[len(lines) for lines in kept]} of 1,000 documents kept,",
              f"{len(set.intersection(*kept))} lines in all eight files, {len(set.union(*kept))} in any")
        assert len(kept) == 8 and all(lines == kept[0] for lines in kept), "changed"
        assert 60 < len(kept[0]) < 140, "changed"
PYTHON
"$work/venv/bin/python" sample.py 2> log | grep '^datatrove' || { tail -5 log; exit 1; }
