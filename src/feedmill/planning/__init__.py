"""Which sample comes when: permutations, blends, recipes, plans."""
