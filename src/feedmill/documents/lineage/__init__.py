"""Lineage: where each row of an output came from, stored beside the output.

runs.py      rows of the inputs as runs of neighbors, and their encoding
sidecar.py   the file beside an output: its layout, where it lies, reading and writing it
"""
