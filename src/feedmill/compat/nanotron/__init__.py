"""Nanotron's faces: its command line (`cli`)."""
