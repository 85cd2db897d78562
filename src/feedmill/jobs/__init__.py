"""Units of work on all cores, with the same output for any number of processes, and the state that survives a kill.

A verb is stages of units. `engine.py` runs the units of a stage somewhere, `work.py` keeps what is finished and stages
the outputs, and publishes them when all are there.

- `options.py`: the options of a verb, from which its function, its command and the checks of a pipeline are made.
- `engine.py`: what a verb says of a stage (`Where`), and the engine in use. Here: `run.py`, on `pool.py`, with
  `processes.py`, `shared_memory.py` and `main_program.py`. Elsewhere: `parts.py` for job arrays, and
  `ray_engine.py` for Ray, with `ray_nodes.py`.
- `resources.py`: what a unit needs of its machine, and what cores that has: cores, memory, GPUs, custom resources and
  labels.
- `threads.py`: the same on threads; `sandbox.py`: one call in a process with limits.
- `work.py`: a job on an output, from its beginning to its end, and the lock under which it is written. `journal.py`:
  its identity, finished units and staged outputs, and what a killed job left; `work_folder.py`: files of units.
- `policy.py`: the `on_error` policies and error budgets; `reports.py`: the base class of reports, and what a verb
  leaves out; `dry_run.py`: what a verb would do.
- `events.py`: the record of units: what bars, event files, metrics and the browser show of them, and which are late.
- `progress.py`: signs of life, which move by the bytes that are read; `amounts.py`: sizes and durations as text.
- `buffers.py`: memory for arrays; `memory.py`: collections of cycles, and how much memory a task
  may take.
"""
