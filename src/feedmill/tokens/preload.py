"""The fast engine, loaded on a thread while the program is still importing and reading what else it needs.

Loading it takes a fifth of a second, without Python's lock. Nothing heavy is imported here.
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
    """One model on its way. The thread is waited for at exit: native code must not be cut off inside."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._model: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._load, name="feedmill-tokenizer")
        self._thread.start()

    def _load(self) -> None:
        try:
            self._model = load_native(self._path)
        except BaseException as error:  # handed on: a panic of compiled code is not an Exception
            self._error = error

    def result(self) -> Any:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._model


def load_ahead(name: str | os.PathLike[str]) -> None:
    """Begin to load a ``tokenizer.json``, or that of a folder, if it is there; whatever is wrong is reported by
    `take_native`."""
    path = Path(name)
    path = path / "tokenizer.json" if path.is_dir() else path
    if path.suffix == ".json" and path.is_file() and str(path) not in _started:
        _started[str(path)] = _Loading(str(path))


def take_native(path: str) -> Any:
    """Return the model, loaded by now, or loaded here. Raises what loading raises, ImportError included."""
    loading = _started.pop(path, None)
    return load_native(path) if loading is None else loading.result()


def load_native(path: str) -> Any:
    """Return a fastokens model without truncation and padding, on one thread: parallelism is by processes."""
    from fastokens._native import Tokenizer

    model = Tokenizer.from_file(path)
    model.no_truncation()  # a file may carry the settings of a training run: they would cut documents
    model.no_padding()
    with _on_one_core():
        model.encode_batch_flat(["one", "two"], False)
    return model


@contextlib.contextmanager
def _on_one_core() -> Iterator[None]:
    """The engine counts the cores at its first call and starts as many threads, which then fight with other workers.
    Where it may use one core only it starts none."""
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
