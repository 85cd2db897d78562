"""Nanotron's command line (`cli`) and datasets (`data`), implemented with Feedmill."""
