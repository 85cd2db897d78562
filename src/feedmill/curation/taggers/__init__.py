"""The taggers, one file for each group; `feedmill.curation.registry` finds them by name."""
