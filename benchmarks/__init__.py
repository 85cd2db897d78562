"""Benchmarks of Feedmill and its peers.

`run.py` is the command, `README.md` the guide. Each package covers one subject.
"""
