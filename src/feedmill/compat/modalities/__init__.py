"""Modalities' data commands over Feedmill."""
