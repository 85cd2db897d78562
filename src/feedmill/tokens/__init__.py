"""Tokenize documents, and rewrite, decode and index token files.

tokenizer, template, engines, selfcheck, ahead   load a tokenizer of this machine
encode, segments, work, spill                    documents of one unit of work, encoded into a piece
job                                              the job that encodes documents, whatever its output
tokenize, datatrove_tasks                        token files of any formats; one file per task, as datatrove
dolma_output, parts, mixing_order                Dolma's folders of mixed files
outputs                                          names, token sizes and writers of token files
rewrite, targets, units, orders, corpus          documents of token files, written elsewhere in another order
merge, shuffle, split, filter                    the verbs that do so
decode, index, instruct, numbers                 further verbs
"""
