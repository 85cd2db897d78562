"""Which groups of rollouts each step of a run trains on.

The order cannot be a function of the position alone, because samplers append while a trainer reads. So each step has a
record, which is made once by whichever rank comes first, and read by all others and by every later replay: `steps.py`.
What it draws is a function of what the record says and of the steps before it, so that `check` computes it again.
"""
