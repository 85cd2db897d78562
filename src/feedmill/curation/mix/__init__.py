"""Mixing: filters, span replacement and sampling over documents and their attributes."""
