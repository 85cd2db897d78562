"""Filter documents by their attributes, replace spans of their texts, and sample them."""
