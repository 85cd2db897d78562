"""Token files: tokenizing, reading, merging and shuffling."""
