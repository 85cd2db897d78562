"""From raw documents to those worth training on: taggers, deduplication, mixing, statistics."""
