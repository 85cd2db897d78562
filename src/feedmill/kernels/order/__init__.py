"""Orders and packings: shuffles, blends and blocks that equal those of other tools."""
