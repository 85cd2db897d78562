"""A plan on this rank: batches, workers, state.

- `loader.py`: `Loader`; `layout.py`, `ranks.py`: which batches of the plan are this rank's; `epochs.py`: in epochs.
- `plan.py`: what a loader uses of a plan.
- `batches.py`, `collate.py`: one batch from its positions; `encoder.py`, `typed.py`, `tensors.py`, `cooking.py`: by the
  hooks of a task encoder; `groups.py`: packs and groups over windows of samples.
- `workers.py`, `portable.py`, `pipeline.py`, `transfer.py`: batches made ahead, copied to a device, handed to the loop;
  `iteration.py`: one pass over them.
- `progress.py`, `state.py`, `checkpoint.py`, `gathered.py`: how far a loader is, saved and resumed.
- `failures.py`, `labels.py`, `metrics.py`, `watchdog.py`: samples that fail, where samples are from, what it costs.
- `diskpool.py`, `cachepool.py`: bytes that hooks read ahead; `bench.py`: how fast a plan loads.
"""
