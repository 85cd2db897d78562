"""Exact schedules from weights: by a table of one period, by lines, by deadlines, in runs, and in stages."""
