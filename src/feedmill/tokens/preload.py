"""Load the fast engine on a thread while the program imports other modules and reads its inputs.

Loading takes a fifth of a second and does not hold Python's lock. This module imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_started: dict[str, _Loading] = {}


class _Loading:
    """A model that is being loaded. The thread is joined at exit, because native code must not be interrupted."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._model: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._load, name="feedmill-tokenizer")
        self._thread.start()

    def _load(self) -> None:
        try:
            self._model = load_native(self._path)
        except BaseException as error:  # raised by `result`; a panic of compiled code is not an Exception
            self._error = error

    def result(self) -> Any:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._model


def load_ahead(name: str | os.PathLike[str]) -> None:
    """Start loading a ``tokenizer.json``, or that of a folder, if it exists. `take_native` raises any error."""
    path = Path(name)
    path = path / "tokenizer.json" if path.is_dir() else path
    if path.suffix == ".json" and path.is_file() and str(path) not in _started:
        _started[str(path)] = _Loading(str(path))


def take_native(path: str) -> Any:
    """Return the preloaded model, or load it now. Raises the errors of loading, including ImportError."""
    loading = _started.pop(path, None)
    return load_native(path) if loading is None else loading.result()


def load_native(path: str | None = None, *, text: str | None = None) -> Any:
    """Return a fastokens model without truncation and padding, on one thread: parallelism is by processes.

    Args:
        path: a ``tokenizer.json``; or its content as `text`.
    """
    from fastokens._native import Tokenizer

    if path is not None:
        from feedmill.storage.limits import refuse_large

        refuse_large(os.stat(path).st_size, path)
    model = Tokenizer.from_file(path) if text is None else Tokenizer.from_json_str(text)
    model.no_truncation()  # settings left from training would truncate documents
    model.no_padding()
    with _on_one_core():
        model.encode_batch_flat(["one", "two"], False)
    return model


@contextlib.contextmanager
def _on_one_core() -> Iterator[None]:
    """Limit the thread to one core inside the block, so that the engine starts no threads of its own.

    At its first call the engine starts one thread per available core; these would compete with other workers.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, allowed)
