"""Command-line verbs, one thin module each: parse the arguments, call the library, print the report."""
