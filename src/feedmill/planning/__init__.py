"""Sample order: permutations, blends, recipes and plans.

`nodes`, `mixing` and `permutation` implement the index maps. `recipes`, `dialects` and `orders` build trees of them,
`packing` builds rows, and `plan` binds a tree to data. `dealing` assigns positions to ranks and `resuming` continues
from saved states. `ledger`, `report` and `forecast` answer questions about a plan.
"""
