"""Media metadata and clips of video."""
