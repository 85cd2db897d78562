"""Nanotron's command line (`cli`), implemented with Feedmill."""
