"""Tokenize documents, and rewrite, decode and index token files.

tokenizer, template, engines, selfcheck, preload load a tokenizer from this machine; `kinds`: files of other programs
encode, segments                                 encode documents; `spill`: the pieces in which their tokens wait
job                                              the job that encodes documents, whatever its output
tokenize, options, token_files                   token files of any formats; in numbered files of a size
datatrove_tasks                                  one file per task, as datatrove
dolma_output                                     Dolma's folders of mixed files
outputs                                          formats, names, numbers and sizes of token files
writer                                           documents in an order -> files, for all verbs
rewrite                                          the job of the verbs that copy documents of token files in a new order
corpus                                           the documents of several files, read in any order
merge, shuffle, split, filter, resample          these verbs, with their orders
decode, index, instruct, numbers                 further verbs
"""
