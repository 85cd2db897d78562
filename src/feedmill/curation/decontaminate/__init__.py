"""Decontamination: find questions of benchmarks in training documents, question by question.

`benchmarks` reads questions and indexes the n-grams of their words. `matching` finds in a block of documents which
questions may be there, and compares these word by word. `job` runs it over files: a scan of each file, the counts of
n-grams over all files, and the attributes of each file.
"""
