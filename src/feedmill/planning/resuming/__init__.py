"""Going on from a state whose data, skip list or recipe has changed.

`outline` describes a plan in a state; `changes` names what differs; `prefix` and `proof` show how far two plans are the
same; `resume` decides.
"""
