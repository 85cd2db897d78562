"""Dolma's command line over Feedmill's rooms."""
