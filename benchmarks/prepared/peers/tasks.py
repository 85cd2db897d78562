"""A task encoder with hooks in Python, in a separate module so that worker processes can import it."""

from __future__ import annotations

import importlib
import json
import os

PACKAGE = "BENCHMARK_ENERGON"
"""The environment variable that names the package: worker processes import this module too."""
energon = importlib.import_module(os.environ[PACKAGE])
VOCABULARY = 50_000


@energon.stateless
def cook(sample):
    """Return the crude sample unchanged."""
    return sample


class Encoding(energon.DefaultTaskEncoder):
    """A task that parses the JSON of crude samples and numbers the words of the caption, in Python."""

    decoder = None
    cookers = (energon.Cooker(cook),)

    @energon.stateless
    def encode_sample(self, sample):
        """Return the picture's bytes, and a number for each word."""
        words = json.loads(sample["json"])["caption"].split()
        return {"jpg": sample["jpg"], "ids": [sum(word.encode()) % VOCABULARY for word in words]}

    def batch(self, samples):
        """Return the samples as a list."""
        return list(samples)
