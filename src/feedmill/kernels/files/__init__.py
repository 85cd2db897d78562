"""Bytes of files: tars, pages of SQLite, pickled indexes."""
