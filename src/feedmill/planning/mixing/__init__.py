"""Weights into exact schedules: by a table of one period, by lines, in stages."""
