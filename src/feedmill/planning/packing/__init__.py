"""Rows of tokens planned from lengths alone: windows, and best-fit packing of whole documents."""
