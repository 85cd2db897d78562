"""Resume from a state whose data, skip list or recipe has changed.

`outline` describes a plan in a state, `changes` lists differences, and `resume` proves how far two plans are the same,
and decides.
"""
