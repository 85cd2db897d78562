"""A dataset as files: a read-only file system over any format that has parts."""
