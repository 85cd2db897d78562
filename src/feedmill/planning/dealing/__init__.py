"""Global batches and ranks: which positions a batch has, and which rank gets which of them.

`grid` (batches of a number of samples) and `cuts` (by budget) say where global batches end; `dealer` deals each to the
ranks, `balancing` by `costs` from the index; `homogeneous` keeps batches of one source; `spread` reports.
"""
