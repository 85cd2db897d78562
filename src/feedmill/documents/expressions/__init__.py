"""Expressions on documents: one tree, which is read from jq or from JSONPath and evaluated in one place.

- `tree.py`: the nodes of the tree, and what an expression says of itself: its path, the keys it names
- `jq.py`: from the text of jq to the tree
- `jsonpath.py`: from the text of a JSONPath to the tree
- `evaluate.py`: from the tree to functions of a document, and the comparisons of JSONPath
- `functions.py`: what jq calls by name
- `values.py`: JSON values in both dialects: order, truth, arithmetic, indexing

The dialects are those of Dolma's mixer: jq as jaq 1.2 evaluates it, JSONPath as the library jsonpath-rust 0.3 does. No
code is generated. Unsupported features are errors when an expression is read.
"""

from feedmill.documents.expressions.evaluate import (
    Filter,
    compile_jq,
    compile_path,
    compile_straight,
    compile_test,
    named_below,
)
from feedmill.documents.expressions.values import MISSING, JqError

__all__ = [
    "MISSING",
    "Filter",
    "JqError",
    "compile_jq",
    "compile_path",
    "compile_straight",
    "compile_test",
    "named_below",
]
