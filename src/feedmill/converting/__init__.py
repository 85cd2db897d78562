"""Convert datasets of samples, tokens or rows from any readable format to any writable one, and prove the result.

- `convert`: the verb. `table`: supported conversions. `preview`: options, and what is converted and lost.
- `samples`, `rows`, `tokens`: the three families, each with its `Source`; `targets/`: a `Target` for each format.
- `units`: the work of one process for all families: read, write, hash, read back, compare.
- `engine`: all units, and their digests; `job`: the journal, the staged result and the proof.
- `fates`: the table of what becomes of each kind of value; `values`: values as a reader gets them, and their digests.
- `facts`, `losses`, `survey`: facts about a source, losses of its conversion, and the columns of its values.
- `fields`, `jsontypes`, `lines`, `vlatext`: samples as named values, rows and sequences.
- `windows`: episodes of robots as the windows that VLA Foundry reads.
"""
