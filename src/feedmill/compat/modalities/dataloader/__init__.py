"""Modalities' modules of datasets, under their own names."""
