"""Nanotron's modules of datasets, under their own names."""
