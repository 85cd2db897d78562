"""Curate documents: taggers, deduplication, filters, statistics."""
