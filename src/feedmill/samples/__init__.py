"""What bytes mean: sample types, field maps, decoding."""
