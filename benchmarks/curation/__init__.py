"""Tagging, deduplicating, mixing and counting documents."""
