"""Tokenize documents, and rewrite, decode and index token files.

tokenizer, template, engines, selfcheck, preload load a tokenizer from this machine; `kinds`: files of other programs
encode, segments, work, spill                    encode the documents of one unit of work
job                                              the job that encodes documents, whatever its output
tokenize, token_files                            token files of any formats; in numbered files of a size
datatrove_tasks                                  one file per task, as datatrove
dolma_output                                     Dolma's folders of mixed files
outputs                                          names, token sizes and writers of token files
rewrite, targets                                 copy documents of token files in a new order; an output is a unit
units, corpus                                    what is ordered, the orders, reading; documents of several files
merge, shuffle, split, filter                    the verbs that do so
decode, index, instruct, numbers                 further verbs
"""
