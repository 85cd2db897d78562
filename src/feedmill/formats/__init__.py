"""One file per on-disk format; `base` holds the contract that all of them keep."""
