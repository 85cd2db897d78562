"""From text to tokens: tokenizers, the tokenizing job, and what is done with token files (merge, shuffle, split)."""
