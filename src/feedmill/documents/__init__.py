"""Documents: what asks for parts of them.

`jq` evaluates expressions, for filters and for the text of a document.
"""
