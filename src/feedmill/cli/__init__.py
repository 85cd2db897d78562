"""One file per verb, thin: parse, call, print."""
