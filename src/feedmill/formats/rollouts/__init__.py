"""Rollouts: groups of answers for reinforcement learning, in a folder that only grows.

    rollouts/commits/00000042.parquet    a commit: whole groups of answers, one row each
    rollouts/steps/RUN/00004711.json     a step of a run: what it drew (`feedmill.planning.rollouts`)
    .../.facts/00000000.z                copies of the facts of 1,000 files, so that opening reads one in place of them

Any number of processes append while others read. There is no log and no lock: a commit is published under the next free
number in one step, which fails if another process was faster (`Store.put_new`). So file N is there if and only if
commit N is complete, and numbers have no holes. A process that is killed leaves at most a staged file, which the next
one deletes.

`numbered.py` is such a folder; `commits.py` has `Rollouts`, which checks answers, appends and reads; `layouts.py` reads
those of other tools.
"""
