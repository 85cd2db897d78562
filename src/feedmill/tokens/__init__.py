"""Tokenize documents, and rewrite, decode and index token files.

tokenizer, template, engines, selfcheck, preload load a tokenizer from this machine; `kinds`: files of other programs
encode, segments, work, spill                    encode the documents of one unit of work
job                                              the job that encodes documents, whatever its output
tokenize, token_files, numbered_files            token files of any formats; in numbered files of a size
datatrove_tasks                                  one file per task, as datatrove
dolma_output, parts, mixing_order                Dolma's folders of mixed files
outputs                                          names, token sizes and writers of token files
rewrite, write_part, gather, targets             copy documents of token files in a new order; an output is a unit
units, orders, corpus, mapped                    what is ordered, the orders, documents of several files, their bytes
merge, shuffle, split, filter                    the verbs that do so
decode, index, instruct, numbers                 further verbs
"""
