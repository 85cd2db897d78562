"""Frames of MP4 and QuickTime files by number, without a container: the sample table, what to read, a bare decoder.

    `table.py`    the table of a file's frames (time, place, size, key) from its ``moov`` box, and from its fragments
    `sidecar.py`  tables that are kept in the cache folder
    `decoder.py`  which packets give wanted frames, and a decoder that takes packets of any file
    `clips.py`    the frames of one file in the order in which they are shown

`formats.avvideo.Frames` (single frames of a dataset) and `samples.avdecoder.AVDecoder` (clips of a file) read with
them, and fall back to a container for what a table cannot say (`NoTable`), and to say what is wrong with a file.
"""
