"""Sides of the measurements: one process each. There are no peers beside Feedmill."""
