"""Values of columns of Arrow: one answer for each type, wherever it stands.

- `table.py`: the table of all types, and what each becomes; readers of single values and extension types. It is closed.
- `reading.py`: reads rows by the table.
- `features.py`: the features of `datasets`.
- `nested.py`: the readers of values that hold others; `place.py`: what they are made from.
- `arrays.py`: selection of rows, and other work on arrays.
"""
