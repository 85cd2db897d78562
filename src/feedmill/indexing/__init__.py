"""Creating and maintaining indices: prepare, check, repair."""
