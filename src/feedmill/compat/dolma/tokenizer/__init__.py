"""Dolma's tokenizer, and its call that tokenizes files."""

from feedmill.compat.dolma.tokenizer.executor import tokenize_in_parallel
from feedmill.compat.dolma.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer", "tokenize_in_parallel"]
