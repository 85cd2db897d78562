"""Documents: find their files, read them, and select their fields.

A path or pattern becomes files, a file units, a unit batches of texts with their rows: `find.py` -> `units.py` ->
`read.py`, or `lines.py` where a verb of curation needs whole rows.

- `find.py`: files for the inputs of a verb, by `wildcards.py` and `selection.py`; `kinds.py`: kinds by names;
  `hub_splits.py`: splits by names, as Hugging Face assigns them.
- `file.py`: one file, its dataset, and where its attributes lie; `record_folders.py`: files of Feedmill beside it.
- `seeking.py`: rows of a file of lines at random.
- `units.py`: files in pieces for processes. `read.py` reads one in batches (`batch.py`); `columns.py` does so for
  Parquet and Arrow, `lines.py` as JSON lines with ids.
- `rows.py`: parse rows of JSON; `textpath.py`: a text by a field, a path or an expression; `typed.py`: text and id of
  declared types.
- `expressions/`: jq and JSONPath. `warc/`: web archives. `lineage/`: which row of which file a row was made from.
"""
