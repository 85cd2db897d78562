"""The verbs on mixtures, one per file."""
