"""Simulation of 10^9 documents, 10^5 shards, 1 PB and 4,096 ranks on one machine.

docs/internals/scale.md has its figures.
"""
