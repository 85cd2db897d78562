"""The data browser: `feedmill serve` and `feedmill report`. Pages over the calls of the other rooms.

    serve.py       the verb: opens what is given, and runs the server
    report.py      the verb `feedmill report`: the same as one HTML file
    notebook.py    `feedmill.show`: the same in a frame for notebooks
    cards.py       what notebooks show of an object by itself, without the packages of the extra
    library.py     what is open, by name in the address
    app.py         routes, who may read, headers, errors
    views.py       the views by name
    state.py       the state of a page: its address, read and written
    samples.py     view 1: samples of a dataset
    step.py        view 2: what a step sees
    losses.py      loss logs, and the spikes in them
    mixture.py     view 3: the recipe's sources over the run
    bench.py       view 5: limits on the scores of documents
    duplicates.py  view 6: clusters of duplicates
    clusters.py    where the clusters come from
    worddiff.py    the words in which two texts differ
    tokens.py      view 8: lengths in tokens, and how full rows are
    fertility.py   what tokenizers make of the same text
    weights.py     the weights in a recipe's tree, and changes of them; copies.py saves a changed copy
    life.py        view 4: a document from its raw line to the steps that see it
    health.py      view 7: what `check` finds, and the shards
    loader.py      view 9: what the training loop waits for; telemetry.py reads the reports
    compare.py     view 10: two datasets, recipes or runs; compared.py looks at their samples
    pipeline.py    the steps of a pipeline; runs.py reads it and its manifest
    home.py        what is open
    columns.py     columns of the index: histograms, filters, orders
    documents.py   documents without an index, with their attributes
    corpus.py      documents in memory with their sources and numbers, for views 5 and 6
    content.py     a sample's parts as plain data
    pictures.py    images, decoded and written again
    marks.py       text whose invisible characters are made visible
    charts.py      coordinates of the drawings
    templating.py  the templates' filters
    templates/     a page each; macros in parts.html and drawn.html
    static/        styles, the script, and libraries that are not ours (vendor/)

A view is a function that takes what is open and the state of the page, and returns plain data. The page is drawn from
that data, and ``.json`` beside each page returns it.
"""
