"""Dolma's taggers as classes, to call on documents and to derive from."""
