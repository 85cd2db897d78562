"""What the kernels of this folder and their plain forms are limited to."""

MOST_DEPTH, MOST_NUMBER = 64, 300
"""Levels of a plain line, and characters of its numbers."""
RECORD = 24
"""Bytes of a packed span."""
PLACE_DIGITS, EXACT_DIGITS = 18, 15
"""Most digits of the start or end of a span, and of whole numbers that a float holds exactly."""
