"""Units of work on all cores, with the same output for any number of processes, and the state that survives a kill.

- `run.py`: a function over many items on processes, results in order, by `processes.py`, `pickling.py` and
  `shared_memory.py`.
- `engine.py`: what a verb says of a stage (`Where`), and the engine in use; `parts.py` runs stages as parts of a job
  array, `ray_engine.py` on a Ray cluster: `ray_nodes.py` checks its nodes, `ray_tasks.py` has the units.
- `threads.py`: the same on threads; `buffers.py`, `cores.py`, `garbage.py`: memory, cores and collections for both.
- `work.py`: `Work`, the lock, identity, finished units (`units.py`) and staged outputs of one job, in the store of its
  output, and their publication; `alone` takes only the lock; `settle` is for readers. `unfinished.py`: the state that
  a killed job left; `unit_files.py`: the files of its units, on a disk or in an object store.
- `dry_run.py`: what a verb would do, without doing it: `DryRun`, and the parameter ``dry_run`` of verbs.
- `policy.py`: the `on_error` policies and error budgets.
- `reports.py`: the base class of reports, and what ``--json`` prints of them.
- `progress.py`: signs of life: a bar, or lines; `amounts.py`: sizes and durations as text.
"""
