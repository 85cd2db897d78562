"""The data browser: `feedmill serve` and `feedmill serve --export`. Pages over the calls of the other rooms.

An address becomes a state and a view, a function of what is open and of the state that returns plain data; a template
draws the page from that data, and ``.json`` beside each page returns it. `app.py` -> `state.py` -> a view -> a page.

- `serve.py`: the verb: opens what is given, and runs the server
- `report.py`: the verb `feedmill serve --export`: the same as one HTML file
- `options.py`: the options of both verbs
- `notebook.py`: `feedmill.show`: the same in a frame for notebooks
- `cards.py`: what notebooks show of an object by itself, without the packages of the extra
- `library.py`: what is open, by name in the address; reads pipelines and their manifests
- `app.py`: routes, the views by name, what is open, who may read, headers, errors
- `state.py`: the state of a page: its address, read and written
- `samples.py`: view 1: samples of a dataset
- `episodes.py`: the episode of a robot's frame: players, frames, curves, what a window covers
- `step.py`: view 2: what a step sees
- `mixture.py`: view 3: the recipe's sources over the run, and the swarm and the fit behind it
- `weights.py`: the weights in a recipe's tree, changes of them, and changed copies
- `life.py`: view 4: a document from its raw line to the steps that see it
- `filters.py`: view 5: limits on the scores of documents
- `duplicates.py`: view 6: clusters of duplicates, and the words in which two texts differ
- `health.py`: view 7: what `check` finds, and the shards
- `tokens.py`: view 8: lengths in tokens, and how full rows are
- `loader.py`: view 9: what the training loop waits for
- `compare.py`: view 10: two datasets, recipes or runs
- `jobs.py`: view 11: the units of jobs by state
- `pipeline.py`: the steps of a pipeline
- `logs.py`: what runs write: loss logs with their spikes, the telemetry of loaders, the events of jobs
- `columns.py`: columns of the index: histograms, filters, orders
- `documents.py`: documents without an index, with their attributes
- `corpus.py`: documents in memory with their sources and numbers, for views 5 and 6
- `parts.py`: a sample's parts as plain data, and its images decoded and written again
- `episodes.py`: the episode of a robot's frame: videos, curves, and what a window covers
- `invisible.py`: text whose invisible characters are made visible
- `results.py`: results that pages share, or wait for
- `charts.py`: coordinates of the drawings
- `templating.py`: the templates' filters
- `templates/`: a page each; macros in parts.html and drawn.html
- `static/`: styles, the script, and libraries that are not ours (vendor/)
"""
