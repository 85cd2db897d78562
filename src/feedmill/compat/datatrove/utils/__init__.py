"""datatrove's module of datasets, under its own name."""
