"""Plain forms of compiled functions, for tests to compare them with."""
