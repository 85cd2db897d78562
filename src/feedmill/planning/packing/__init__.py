"""Packing of documents into rows of tokens, planned from lengths alone: windows, and best-fit packing."""
