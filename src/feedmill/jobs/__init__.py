"""Units of work on all cores, with the same output for any number of processes; and what survives when a run is killed.

- `run.py`: a function over many items on processes, results in order, by `processes.py` and `shared_memory.py`.
- `threads.py`: the same on threads; `buffers.py`, `cores.py`: memory and cores for both.
- `work.py`: `Work`, the lock, identity, finished units (`units.py`) and staged outputs of one job, in the store of its
  output, and how they are published; `alone` for what needs the lock only; `settle` for readers. `unfinished.py`: what
  a killed job has left.
- `policy.py`: what an error does to a run.
- `progress.py`: the bar.
"""
