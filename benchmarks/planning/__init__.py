"""Benchmarks of orders, packing and dealing. Each module is a command that prints a table."""
