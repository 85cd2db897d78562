"""Parts of the demo: data that every machine has, a small training program, and the comparison of two runs.

``feedmill demo`` takes all ways at once: `corpus.py` and `pages.py` make documents, a tokenizer from them and images,
the verbs of other rooms prepare and blend both, and `runs.py` starts `train.py`, kills it, resumes it on another number
of ranks and compares what both runs saw.

- `corpus.py`: documents of the standard library, and a tokenizer trained on them; `pages.py`: images of them.
- `sample_data.py`: ``demo --data``, small data of all kinds for the documentation; trajectories of robots.
- `train.py`: the training program, one process per rank; `runs.py`: the processes, and hashes of what they saw.
"""
