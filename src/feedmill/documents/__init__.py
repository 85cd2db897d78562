"""Documents: finding their files, reading them, and selecting their fields.

find, wildcards, selection   the one finder: inputs and patterns to files of documents
kinds, file                  the kinds by name; one file of documents, its dataset and its attributes' place
units                        files cut into units of work
lines                        documents of any kind as JSON lines, with ids: what the verbs of curation read
read, columns, batch         the texts of a unit in batches: what tokenizing reads
textpath, typed              where a document's text (and id) is: a field, a path, a jq expression
rows                         rows of JSON lines: ids, texts, and what is wrong with a row
jq                           jq expressions, for filters and for the text of a document
hub_splits                   which files of a folder are of which split
"""
