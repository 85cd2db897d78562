"""Token data: documents as runs of token ids in flat files, one file of this room per on-disk format."""
