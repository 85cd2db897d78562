"""Mount a dataset as a read-only file system, for any format that has parts."""
