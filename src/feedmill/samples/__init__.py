"""Meaning of sample bytes: sample types, field maps, decoding."""
