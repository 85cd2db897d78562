"""A fuzzer over every reader and configuration: ``PYTHONPATH=tests python -m fuzzing --inputs 50000``.

`corpus` makes small valid inputs with the project's own writers, `mutate` damages one file of one of them, `readers`
says what is then run, `worker` runs it in a forked process with bounded memory and time under an audit hook, and
`__main__` deals the inputs out and reports. A finding is anything but success or a `FeedmillError`: a traceback, a
"defect" message, a crash, more than 5 s or 1 GiB, code run, or a file outside of the input's folder.
"""
