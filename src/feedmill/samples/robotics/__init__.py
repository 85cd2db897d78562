"""Robotics samples: camera frames, low-dimensional fields over a window of time, and their normalization.

- `settings.py`: the settings; `view.py`: samples as arrays, and batches of them.
- `poses.py`: rotations and poses; `relative.py`: fields as seen from the state at the anchor.
- `statistics.py`: statistics of fields; `job.py`: those of a whole dataset; `normalize.py`: their use.
- `episodes.py`: frames of several robots in one shape; `summary.py`: statistics of their features, and
  normalization by them.
"""
