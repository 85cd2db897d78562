"""Which sample comes when: permutations, blends, recipes, plans.

`nodes`, `mixing` and `permutation` are the maps; `recipes`, `dialects` and `orders` make trees of them, `packing` makes
rows; `plan` binds a tree to data. `dealing` gives the ranks their parts, `resuming` continues from states, `ledger`,
`report` and `forecast` answer questions.
"""
