"""jq expressions in the dialect of jaq 1.2, which Dolma's mixer uses.

It differs from jq 1.7: indexing ``null`` is an error (``.a.b`` without an ``a``), indexing distinguishes integers from
floats, ``/`` returns floats, and there are no paths, assignments, inputs or modules. Unsupported features raise errors
when an expression is parsed. An expression is parsed once and compiled to plain functions; no code is generated.
"""

from feedmill.documents.expressions import filters, functions, mathematics, texts  # noqa: F401 - they put themselves into the registry
from feedmill.documents.expressions.evaluate import Filter, compile_jq
from feedmill.documents.expressions.values import JqError

__all__ = ["Filter", "JqError", "compile_jq"]
