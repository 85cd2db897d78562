"""Loaders, resuming, and memory over long runs."""
