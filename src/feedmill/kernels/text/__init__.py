"""Kernels over texts: characters, words, paragraphs and quality signals."""
