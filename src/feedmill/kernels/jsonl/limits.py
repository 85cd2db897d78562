"""Limits of the kernels in this package and of their plain Python forms."""

MOST_DEPTH, MOST_NUMBER = 64, 300
"""Maximum nesting depth of a plain line, and maximum characters of its numbers."""
RECORD = 24
"""Size of a packed span in bytes."""
PLACE_DIGITS, EXACT_DIGITS = 18, 15
"""Maximum digits of the start or end of a span, and of integers that a float represents exactly."""
