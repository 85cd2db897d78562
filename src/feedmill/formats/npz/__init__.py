"""NumPy's `.npz` files, as bytes in memory: `arrays.py`."""
