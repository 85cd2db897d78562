"""Orders, packing and dealing: commands of their own, with a table each."""
