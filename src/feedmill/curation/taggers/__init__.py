"""Built-in taggers, one module per group. `feedmill.curation.registry` finds them by name."""
