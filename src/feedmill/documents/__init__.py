"""Documents: which files hold them, how they are read, and what asks for parts of them.

    find, wildcards, kinds     the one finder: inputs and patterns to files, each of its kind
    file                       one file of documents, its dataset, and where its attributes lie
    units                      files cut into units of work
    read, columns, batch       the texts of a unit, in batches: JSON lines, Parquet, Arrow, plain text
    textpath, typed            where a document's text (and id) is: a field, a path, a jq expression
    rows                       rows of JSON lines: ids, texts, and what is wrong with a row
    jq                         jq expressions, for filters and for the text of a document
    hub_splits                 which files of a folder are of which split
"""
