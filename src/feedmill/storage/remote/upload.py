"""Writing of objects: in parts that are sent while the rest is still being written.

An object of at most one part is put in one request. A larger one is a *multipart upload*: it appears when it is
completed, and is aborted after an error. A process that is killed leaves its parts in the store, unseen and paid for.
Each upload is therefore noted in the cache folder, as a file that its process keeps locked; the next job of this
machine that writes to the same bucket aborts the uploads whose process is dead (`abort_abandoned`).

The server compares each part with the hash in its signature, so a corrupt part is refused and sent again.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from feedmill.errors import ConfigError, FeedmillError, MissingExtra, StorageError
from feedmill.storage.folders import cache_folder
from feedmill.storage.locks import FileLock
from feedmill.storage.staging import dead, make_folder, new_staged

if TYPE_CHECKING:
    from obstore import WritableFile

    from feedmill.storage.remote.files import RemoteFiles

logger = logging.getLogger("feedmill")

_PART = 16 << 20
_PARTS_IN_FLIGHT = 4
_MOST_PARTS = 10_000  # S3 takes no more
_STEP = 8 << 20
_BUFFER = 1 << 20  # many writers write a few bytes at a time
_looked: set[str] = set()
"""Buckets of which this process has aborted what others left."""
_guard = threading.Lock()


def part_size() -> int:
    """Return the bytes of a part: ``FEEDMILL_UPLOAD_PART_MIB`` (5 to 5,120), or 16 MiB. Raises `ConfigError`."""
    text = os.environ.get("FEEDMILL_UPLOAD_PART_MIB", "")
    if not text:
        return _PART
    if not text.isdecimal() or not 5 <= int(text) <= 5120:
        raise ConfigError(
            f"FEEDMILL_UPLOAD_PART_MIB is {text!r}: expected a number from 5 to 5120",
            kind="bad-option",
            fix="Unset it for parts of 16 MiB.",
        )
    return int(text) << 20


@contextlib.contextmanager
def upload(store: RemoteFiles, path: str, *, size: int = 0) -> Iterator[BinaryIO]:
    """Open an object to write, in order; it appears if the block ends without an error.

    Args:
        size: bytes of the object where that is known: parts are larger if there would be too many.

    Raises:
        StorageError: the store refuses it, or it has more than 10,000 parts; also from writes inside the block.
    """
    abort_abandoned(store)
    parts = _Parts(store, path, max(part_size(), -(-size // _MOST_PARTS)))
    file = cast(BinaryIO, io.BufferedWriter(parts, _BUFFER))
    try:
        yield file
        file.flush()
        parts.complete()
    except BaseException as error:
        parts.abort(error)
        raise
    finally:
        file.close()


class _Parts(io.RawIOBase):
    """The bytes of an object that is being written."""

    def __init__(self, store: RemoteFiles, path: str, part: int) -> None:
        import obstore

        self._store, self._path, self._part, self._written = store, path, part, 0
        self._note: tuple[str, FileLock] | None = None
        key = store.key(path)
        with store.asking(path):
            self._writer: WritableFile | None = obstore.open_writer(
                store.client, key, buffer_size=self._part, max_concurrency=_PARTS_IN_FLIGHT
            )

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")[:_STEP]
        if self._writer is None:
            return len(view)  # what a buffer still has after an error
        after = self._written + len(view)
        if after >= self._part and self._note is None:
            self._note = _note(self._store.place(self._path))
        if after > self._part * _MOST_PARTS:
            raise StorageError(
                f"the object has more than {_MOST_PARTS:,} parts of {self._part >> 20} MiB, the most that S3 takes",
                file=self._store.locate(self._path),
                kind="too-large",
                fix="Set FEEDMILL_UPLOAD_PART_MIB to a larger part, or write smaller files.",
            )
        with self._store.asking(self._path):
            self._writer.write(bytes(view))  # it keeps what it gets until that is sent; a buffer is used again
        self._written = after
        return len(view)

    def complete(self) -> None:
        """Make the object appear."""
        assert self._writer is not None
        self._store.forget(self._store.key(self._path))
        with self._store.asking(self._path):
            self._writer.close()
        self._writer = None
        self._forget_note()

    def abort(self, error: BaseException) -> None:
        """Abort the upload, so that its parts are removed; if that fails, the next job does it."""
        writer, self._writer = self._writer, None
        try:
            with self._store.asking(self._path):
                if writer is not None and not writer.closed():
                    writer.__exit__(type(error), error, error.__traceback__)
                    self._forget_note()
        except FeedmillError as failed:
            logger.warning("the parts of an upload could not be removed from the store: %s", failed)
        finally:
            if self._note is not None:
                self._note[1].close()

    def _forget_note(self) -> None:
        note, self._note = self._note, None
        if note is not None:
            with contextlib.suppress(OSError):
                os.unlink(note[0])
            note[1].close()


def _note(url: str) -> tuple[str, FileLock] | None:
    """Note a multipart upload in a file that is locked as long as this process lives."""
    folder = _folder()
    try:
        make_folder(folder)
        path, lock = new_staged(os.path.join(folder, "upload"))
        Path(path).write_text(url)
    except OSError as error:
        logger.warning("%s: if this process is killed, parts of the upload stay in the store: %s", folder, error)
        return None
    return path, lock


def look_again(store: RemoteFiles) -> None:
    """Make `abort_abandoned` look again, for a new job: processes may have been killed since the last one."""
    with _guard:
        _looked.discard(store.host)


def abort_abandoned(store: RemoteFiles) -> None:
    """Abort the multipart uploads to a store's bucket that dead processes of this machine have left, once a job.

    What cannot be aborted is named in a warning, and tried again by the next job.
    """
    with _guard:
        if store.host in _looked:
            return
        _looked.add(store.host)
    with contextlib.ExitStack() as stack:
        alive, ours = set(), []
        with contextlib.suppress(OSError):
            for entry in os.scandir(_folder()):
                lock = stack.enter_context(dead(entry.path))
                url = Path(entry.path).read_text(errors="replace")
                if lock is None:
                    alive.add(url)
                elif not url or url.startswith(store.host + "/"):
                    ours.append((entry.path, url))  # an empty one: it was killed before it sent anything
        for path, url in ours:
            if not url or (url not in alive and _abort(store, url)):
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _folder() -> str:
    return os.path.join(os.path.abspath(cache_folder()), "uploads")


def _boto_client(store: RemoteFiles) -> Any:
    """Return a client of boto3 for what `obstore` cannot ask: which uploads are unfinished."""
    try:
        import boto3
        from botocore import UNSIGNED
        from botocore.config import Config
    except ImportError:
        raise MissingExtra("boto3 is not installed", "s3") from None
    options = store.settings
    settings = {"signature_version": UNSIGNED} if options.get("skip_signature") else {}
    return boto3.Session(profile_name=options.get("profile")).client(
        "s3",
        endpoint_url=options.get("endpoint") or os.environ.get("AWS_ENDPOINT"),  # boto3 knows the other variables
        region_name=options.get("region") or os.environ.get("AWS_REGION"),
        aws_access_key_id=options.get("access_key_id"),
        aws_secret_access_key=options.get("secret_access_key"),
        aws_session_token=options.get("session_token"),
        config=Config(connect_timeout=5, read_timeout=10, retries={"max_attempts": 2}, **settings),
    )


def _abort(store: RemoteFiles, url: str) -> bool:
    """Abort the unfinished uploads of an object; return whether none is left."""
    if not url.startswith(("s3://", "s3a://")):
        # Azure removes them after a week. Google's store, like S3, does it by a rule of the bucket.
        logger.warning("%s: an upload was interrupted; the bucket's lifecycle rules remove its parts", url)
        return True
    bucket, _, key = url.partition("://")[2].partition("/")
    try:
        client = _boto_client(store)
        pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=key)
        for page in pages:
            for found in page.get("Uploads", []):
                if found["Key"] == key:
                    client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=found["UploadId"])
    except Exception as error:  # of boto3, of whatever provides its credentials, or that it is not installed
        logger.warning(
            "%s: the parts of an interrupted upload are still in the store: %s. Abort it (aws s3api"
            " abort-multipart-upload), or let a lifecycle rule of the bucket do it.",
            url,
            error,
        )
        return False
    return True
