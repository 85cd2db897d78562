"""Robotics samples: camera frames, low-dimensional fields over a window of time, and their normalization."""
