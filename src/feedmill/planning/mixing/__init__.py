"""Exact schedules from weights: by a table of one period, by lines, by deadlines, in runs, and in stages."""

PERIOD_LIMIT = 2**20
"""Longest period that is stored as a table."""
