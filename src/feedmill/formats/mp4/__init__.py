"""Frames of MP4 and QuickTime files by number, without a container: the sample table, what to read, a bare decoder.

    `table.py`    the table of a file's frames (time, place, size, key) from its ``moov`` box, and from its fragments
    `decoder.py`  which packets give wanted frames, and a decoder that takes packets of any file

`formats.avvideo.Frames` reads with them, and falls back to a container for what a table cannot say (`NoTable`).
"""
