"""Robotics samples: camera frames, low-dimensional fields over a window of time, and what normalises them."""
