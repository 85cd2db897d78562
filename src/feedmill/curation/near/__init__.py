"""Near-duplicate detection: MinHash, locality-sensitive hashing, exact Jaccard similarity, clusters.

Texts become signatures, signatures keys of bands, equal keys pairs, similar pairs a graph, its components clusters, of
which one document is kept. A folder of signatures holds this for several dumps, which are added one after the other.

- `options.py`: bands and the report; `job.py`: files and attributes.
- `adding.py`: one dump, from signatures to decisions; `parallel.py`: its tasks on all cores.
- `sketch.py`: signatures of a file; `keys.py`: keys by band and range; `join.py`: pairs of a band; `graph.py`: pairs on
  disk; `adding.py`, `stars.py` and `labels.py`: components, in bounded memory; `covering.py`: which documents to keep
  so that each other one is similar to one of them.
- `meaning.py`: near-duplicates by embeddings instead, compared within the clusters of `kmeans.py`.
- `dumps.py`: the folder of signatures; `view.py`: its documents by number; `finish.py`: attributes from decisions.
"""
