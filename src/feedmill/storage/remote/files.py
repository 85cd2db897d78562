"""Upload, download and delete whole files of an object store or a web server; the base of `RemoteStore`.

A file that is written sequentially is uploaded meanwhile (`upload.py`). A file that a library builds in place, or that
goes to a web server, is spooled to this machine's temporary folder first.
"""

from __future__ import annotations

import contextlib
import shutil
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from feedmill.errors import NotFound
from feedmill.storage.base import Entry, too_short
from feedmill.storage.remote.leases import Seen
from feedmill.storage.remote.range_store import RangeStore
from feedmill.storage.remote.spool import spool_error
from feedmill.storage.remote.upload import abort, abort_below, upload

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

_STEP = 8 << 20


class RemoteFiles(RangeStore):
    """The part of a remote store that writes, downloads and deletes files.

    Attributes:
        options: settings of `obstore` that the caller passed; they may hold secrets.
        settings: `options`, and those of the URL's profile that they do not override.
    """

    options: dict[str, Any]
    settings: dict[str, Any]

    @property
    @abstractmethod
    def client(self) -> ObjectStore:
        """Return the client for requests."""

    @contextlib.contextmanager
    def write(self, path: str) -> Iterator[BinaryIO]:
        with self.write_spooled(path) if self.target.startswith("http") else upload(self, path) as file:
            yield file

    def put_file(self, path: str, file: Path) -> None:
        if self.target.startswith("http"):
            with file.open("rb") as spool:
                self._put(path, spool)
            return
        with file.open("rb", buffering=0) as source, upload(self, path, size=file.stat().st_size) as out:
            shutil.copyfileobj(source, out, _STEP)

    def _put(self, path: str, spool: BinaryIO) -> None:
        """Put a file in one request."""
        import obstore

        with self.requesting(path):
            obstore.put(self.client, self.key(path), spool, use_multipart=False)

    def abort_upload(self, url: str) -> bool:
        return abort(self, url)

    def abort_uploads(self) -> None:
        abort_below(self)

    def put_new(self, path: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        key = self.key(path)
        with self.requesting(path):
            try:
                obstore.put(self.client, key, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def examine(self, path: str) -> Seen:
        import obstore

        with self.requesting(path):
            result = obstore.get(self.client, self.key(path))
            return Seen(bytes(result.bytes()), _condition(result.meta), result.meta["last_modified"].timestamp())

    def put_over(self, path: str, data: bytes, seen: Seen) -> Seen | None:
        import obstore
        from obstore.exceptions import NotFoundError, NotSupportedError, PreconditionError

        if not seen.version:
            return super().put_over(path, data, seen)
        key = self.key(path)
        with self.requesting(path):
            try:
                put = obstore.put(self.client, key, data, mode=cast(Any, dict(seen.version)), use_multipart=False)
            except (PreconditionError, NotFoundError):
                return None
            except (NotSupportedError, NotImplementedError):
                return super().put_over(path, data, seen)
        return Seen(data, _condition(put))

    def delete(self, path: str) -> None:
        import obstore

        key = self.key(path)
        self.forget(key)
        with contextlib.suppress(NotFound), self.requesting(path):
            obstore.delete(self.client, key)

    def download(self, path: str, file: BinaryIO) -> Entry:
        import obstore

        key = self.key(path)
        written = 0
        with self.requesting(path):
            result = obstore.get(self.client, key)
            for chunk in result.stream(min_chunk_size=_STEP):
                try:
                    written += file.write(chunk)
                except OSError as error:
                    raise spool_error(error) from None
        entry = entry_of(path, result.meta)
        if written != entry.size:
            raise too_short(self.locate(path), 0, entry.size, written)
        return entry


def _condition(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return what identifies the version of an object in a conditional request."""
    return {name: str(meta[name]) for name in ("e_tag", "version") if meta.get(name) is not None}


def entry_of(path: str, meta: ObjectMeta) -> Entry:
    """Return the entry of an object. Its version is the ETag, or time and size if it has none."""
    version = (meta["e_tag"] or "").strip('"')
    return Entry(path, meta["size"], version or f"{meta['last_modified'].timestamp():.6f}-{meta['size']:x}")
