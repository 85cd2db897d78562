"""From any readable format to any writable one: samples, tokens and rows, each with a proof that nothing changed."""
