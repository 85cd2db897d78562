"""Making and keeping indices: prepare, check, repair."""
