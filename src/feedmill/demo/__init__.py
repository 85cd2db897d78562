"""Parts of the demo: data that every machine has, a small training program, and the comparison of two runs."""
