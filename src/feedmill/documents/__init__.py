"""Documents: find their files, read them, and select their fields.

find, wildcards, selection   find the files of documents for inputs and patterns
kinds, file                  kinds of files by name; one file of documents, its dataset and its attributes
units                        divide files into units of work
lines                        read documents of any kind as JSON lines with ids, for the verbs of curation
read, columns, batch         read the texts of a unit in batches, for tokenizing
textpath, typed              select a document's text (and id): a field, a path, a jq expression
rows                         parse rows of JSON lines: ids, texts, and errors of a row
expressions                  jq and JSONPath, for filters and for the text of a document
hub_splits                   assign the files of a folder to splits
"""
