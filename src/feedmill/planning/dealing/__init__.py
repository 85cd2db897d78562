"""Global batches and ranks: the positions of each batch, and how they are dealt to ranks.

`rules` is what a recipe or a loader asks. `grid` (batches of a fixed number of samples) and `cuts` (batches by budget)
define where global batches end. `dealer` deals each to the ranks, with `balancing` by `costs` from the index, and
checks those of one source or of whole groups. `evenness` reports.
"""
