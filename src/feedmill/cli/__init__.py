"""Command-line verbs, one thin module each: take the options, call the library, print the report.

- `app.py`: the command, which imports a verb when it runs, and reports errors. `verbs.py`: the table of verbs.
- `command.py`: commands from declared options (`feedmill.jobs.options`). `engines.py`: options of engines.
- `output.py`: tables, texts and JSON. `guesses.py`: what was meant by an unknown option. `dialogue.py`: questions of an
  interactive ``prepare``. `precommit.py`: checks of recipes before a commit.
- A verb is a module of its name: `add_parts.py`, `append.py`, `bench.py`, `cache.py`, `cells.py`, `check.py`,
  `convert.py`, `decode.py`, `decontaminate.py`, `dedupe.py`, `delete.py`, `demo.py`, `embed.py`, `extract.py`,
  `filter.py`, `forget.py`, `import_.py`, `index.py`, `lengths.py`, `merge.py`, `mount.py`, `numbers.py`, `plan.py`,
  `prepare.py`, `prepare_media.py`, `propose.py`, `repair.py`, `reshard.py`, `run.py`, `serve.py`, `show.py`,
  `shuffle.py`, `split.py`, `stat.py`, `tag.py`, `tokenize.py`, `trace.py`.
"""
