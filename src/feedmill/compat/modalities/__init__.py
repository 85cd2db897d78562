"""Modalities' data commands, implemented with Feedmill."""
