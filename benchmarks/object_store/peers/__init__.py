"""One side of a measurement each, named for who is measured; run as a module, from the root."""
