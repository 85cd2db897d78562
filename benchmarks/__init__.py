"""Feedmill beside its peers. `run.py` is the command, `README.md` the manual; each package has a subject."""
