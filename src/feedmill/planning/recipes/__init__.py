"""Recipes: read, checked, nested, and compiled to plans."""
