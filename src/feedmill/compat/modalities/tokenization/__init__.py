"""Modalities' module of tokenizers, under its own name."""
