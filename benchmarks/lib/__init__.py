"""What all suites share: processes that take turns, the data, pictures, rates."""
