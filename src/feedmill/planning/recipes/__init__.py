"""Recipes: reading, validation, nesting, and compilation to plans."""
