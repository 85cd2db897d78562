"""Command-line verbs, one thin module each: take the options, call the library, print the report.

- `app.py`: the command, which imports a verb when it runs, and reports errors. `verbs.py`: the table of verbs.
- `command.py`: commands from declared options (`feedmill.jobs.options`). `engines.py`: options of engines.
- `output.py`: tables, texts and JSON. `guesses.py`: what was meant by an unknown option. `dialogue.py`: questions of an
  interactive ``prepare``. `precommit.py`: checks of recipes before a commit.
- A verb of the front page is a module of its name: `bench.py`, `cache.py`, `check.py`, `convert.py`, `dedupe.py`,
  `demo.py`, `filter.py`, `import_.py`, `plan.py`, `prepare.py`, `run.py`, `serve.py`, `show.py`, `tag.py`,
  `tokenize.py`, `trace.py`. So is a group of verbs: `documents.py`, `edit.py`, `mixture.py`, `tokens.py`.
"""
