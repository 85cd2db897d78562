"""From any readable format to any writable one: samples, tokens and rows, each with a proof that nothing changed.

- `convert`: the verb. `table`: which format becomes which. `preview`: options, and what will be done and lost.
- `samples`, `rows`, `tokens`: the three families, each with its `Source`; `targets/`: a `Target` for each format.
- `units`: the work of one process, the same for all of them: read, write, hash, read back, compare.
- `engine`: all units, the digests and the `proof`; `job`: what a killed run left; `staging`: where outputs lie.
- `facts`, `losses`, `survey`: facts about a source, what is lost of it, and the kinds of its values.
- `fields`, `jsontypes`, `lines`, `reading`, `vlatext`: samples as named values, rows and sequences.
"""
