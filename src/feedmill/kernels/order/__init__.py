"""Orders and packings: shuffles, blends and blocks as other tools make them."""
