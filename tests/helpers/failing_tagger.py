"""A module of a tagger whose units fail as the file ``failing`` in the current folder says: lines like ``3 kill``.

The file ``tagged`` there gets a line for each document: the number of its file, the node and the process.
"""

import os
import signal
import time
from pathlib import Path

from dolma import BaseTagger, add_tagger  # type: ignore[import-not-found] # while it is loaded
from dolma.core.data_types import DocResult, Span  # type: ignore[import-not-found]

from feedmill.errors import DataError


@add_tagger("failing")
class Failing(BaseTagger):
    def predict(self, doc):
        file, failing = doc.id.partition("-")[0], Path("failing")
        how = dict(map(str.split, failing.read_text().splitlines())).get(file) if failing.exists() else None
        if how == "kill":  # by the system, as memory runs out
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            os._exit(9)
        if how == "hang":
            time.sleep(10_000)
        if how == "refuse":
            raise DataError("this document cannot be tagged")
        time.sleep(float(os.environ.get("SECONDS_OF_NODE", "0")))
        with open("tagged", "a") as f:
            f.write(f"{file} {os.environ.get('NAME_OF_NODE', 'here')} {os.getpid()}\n")
        return DocResult(doc=doc, spans=[Span(0, len(doc.text), "length", len(doc.text) / 7)])
