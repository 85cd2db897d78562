"""Code that all suites share: fresh processes that alternate, the data, pictures, and rates."""
