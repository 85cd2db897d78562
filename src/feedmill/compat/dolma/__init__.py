"""Dolma's command line, implemented with Feedmill."""
