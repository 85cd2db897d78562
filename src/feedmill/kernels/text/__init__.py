"""Walking over texts: their characters, words, paragraphs, and the signals of their quality."""
