"""Recordings of robots as datasets of episodes; `dataset.py` has what a sample is.

- `tracks.py`: columns as tables of byte ranges; their indices are kept by `feedmill.formats.kept`.
- `hdf5.py`: HDF5 of robomimic, ALOHA and others; `zarr.py`: replay buffers of UMI and Diffusion Policy.
- `mcap.py`: topics of MCAP files; `rlds.py`: episodes in TFRecord files; `lance.py`: tables of
  frames.
"""

from feedmill.formats.format import Format

HDF5 = Format(
    "hdf5",
    "HDF5 episodes",
    "episodes",
    open="feedmill.formats.recorders.hdf5:open_found",
    files=(".hdf5", ".h5"),
    folders=(".hdf5", ".h5"),
    listed=(".hdf5", ".h5"),
    splits=True,
    data=("HDF5",),
    scanned=True,
)
ZARR = Format(
    "zarr",
    "Zarr replay buffer",
    "episodes",
    open="feedmill.formats.recorders.zarr:open_found",
    files=(".zarr.zip",),
    marks=("meta/episode_ends/.zarray", "meta/episode_ends/zarr.json"),
    data=("archives",),
)
MCAP = Format(
    "mcap",
    "MCAP recordings",
    "episodes",
    open="feedmill.formats.recorders.mcap:open_found",
    files=(".mcap",),
    folders=(".mcap",),
    listed=(".mcap",),
    data=("MCAP",),
    scanned=True,
)
RLDS = Format(
    "rlds",
    "RLDS (TFRecord)",
    "episodes",
    open="feedmill.formats.recorders.rlds:open_found",
    files=(".tfrecord",),
    marks=("features.json",),
    is_folder="feedmill.formats.recorders.rlds:is_folder",
    folders=(".tfrecord",),
    listed=(".tfrecord",),
    splits=True,
    data=("TFRecord",),
)
LANCE = Format(
    "lance",
    "Lance table of frames",
    "episodes",
    open="feedmill.formats.recorders.lance:open_found",
    is_folder="feedmill.formats.recorders.lance:is_folder",
    folders=(".manifest",),
    data=("Lance",),
)
FORMATS = (HDF5, ZARR, MCAP, RLDS, LANCE)
