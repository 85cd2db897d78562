"""Convert datasets of samples, tokens or rows from any readable format to any writable one, and prove the result.

- `convert.py`: the verb; `options.py`: its options. `table.py`: supported conversions. `preview.py`: what is converted
  and lost. `info.py`: the verb ``info``.
- `samples.py`, `rows.py`, `tokens.py`: the three families, each with its `Source`. `targets/`: the `Target` of a
  format of samples or rows; tokens have theirs beside the source.
- `units.py`: the work of one process for all families: read, write, hash, read back, compare.
- `engine.py`: all units, and their digests. `job.py`: the journal, the staged result and the proof.
- `fates.py`: the table of what becomes of each kind of value. `values.py`: values as a reader gets them, and their
  digests.
- `facts.py`, `losses.py`, `survey.py`: facts about a source, losses of its conversion, and the columns of its values.
- `fields.py`, `jsontypes.py`, `lines.py`, `vlatext.py`: samples as named values, rows and sequences.
- `episodes.py`: episodes as LeRobot datasets; `windows.py`: episodes of robots as the windows that VLA Foundry reads.
"""
