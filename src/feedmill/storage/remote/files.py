"""Upload, download and delete whole files of an object store or a web server; the base of `RemoteStore`.

A file that is written sequentially is uploaded meanwhile: parts are sent while the rest is still being written. A file
that a library builds in place, or that goes to a web server, is spooled to this machine's temporary folder first.

An object of at most one part is put in one request. A larger one is a *multipart upload*: it appears when it is
completed, and is aborted after an error. The parts of a killed process stay in the store, invisible but billed: the
next job of this machine aborts its upload (`upload_records.py`).

The server compares each part with the hash in its signature, so a corrupt part is rejected and sent again.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from feedmill.errors import ConfigError, FeedmillError, MissingExtra, NotFound, StorageError
from feedmill.storage.base import Entry, too_short
from feedmill.storage.remote.range_store import RangeStore, Seen
from feedmill.storage.remote.spool import spool_error
from feedmill.storage.remote.upload_records import Record, abort_abandoned

if TYPE_CHECKING:
    from obstore import ObjectMeta, WritableFile
    from obstore.store import ObjectStore

logger = logging.getLogger("feedmill")

_STEP = 8 << 20
_PART = 16 << 20
_PARTS_IN_FLIGHT = 4
_MOST_PARTS = 10_000  # the limit of S3
_BUFFER = 1 << 20  # many writers write a few bytes at a time


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


def part_size() -> int:
    """Return the size of a part: ``FEEDMILL_UPLOAD_PART_MIB`` (5 to 5,120), or 16 MiB. Raises `ConfigError`."""
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
    """Open an object for sequential writing; it appears if the block ends without an error.

    Args:
        size: bytes of the object, 0 if unknown: a large object gets larger parts, to stay below 10,000.

    Raises:
        StorageError: the store rejected a request, or there are more than 10,000 parts; also from writes in the block.
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
    """A raw file whose bytes are uploaded as the parts of an object."""

    def __init__(self, store: RemoteFiles, path: str, part: int) -> None:
        import obstore

        self._store, self._path, self._part, self._written = store, path, part, 0
        self._record: Record | None = None
        key = store.key(path)
        with store.requesting(path):
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
            return len(view)  # after an error: the buffer flushes the rest when it is closed
        after = self._written + len(view)
        if after >= self._part and self._record is None:
            self._record = Record.of(self._store.request_url(self._path))
        if after > self._part * _MOST_PARTS:
            raise StorageError(
                f"the object has more than {_MOST_PARTS:,} parts of {self._part >> 20} MiB, the most that S3 takes",
                file=self._store.locate(self._path),
                kind="too-large",
                fix="Set FEEDMILL_UPLOAD_PART_MIB to a larger part, or write smaller files.",
            )
        with self._store.requesting(self._path):
            # A copy: the writer keeps the bytes until they are sent, and the caller reuses its buffer.
            self._writer.write(bytes(view))
        self._written = after
        return len(view)

    def complete(self) -> None:
        """Complete the upload, so that the object appears."""
        assert self._writer is not None
        self._store.forget(self._store.key(self._path))
        with self._store.requesting(self._path):
            self._writer.close()
        self._writer = None
        self._delete_record()

    def abort(self, error: BaseException) -> None:
        """Abort the upload, so that its parts are removed; if that fails, the next job does it."""
        writer, self._writer = self._writer, None
        try:
            with self._store.requesting(self._path):
                if writer is not None and not writer.closed():
                    writer.__exit__(type(error), error, error.__traceback__)
                    self._delete_record()
        except FeedmillError as failed:
            logger.warning("the parts of an upload could not be removed from the store: %s", failed)
        finally:
            if self._record is not None:
                self._record.close()

    def _delete_record(self) -> None:
        record, self._record = self._record, None
        if record is not None:
            record.delete()


def _boto_client(store: RemoteFiles) -> Any:
    """Return a client of boto3: `obstore` cannot list unfinished uploads."""
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
        endpoint_url=options.get("endpoint")
        or os.environ.get("AWS_ENDPOINT"),  # boto3 reads the other variables itself
        region_name=options.get("region") or os.environ.get("AWS_REGION"),
        aws_access_key_id=options.get("access_key_id"),
        aws_secret_access_key=options.get("secret_access_key"),
        aws_session_token=options.get("session_token"),
        config=Config(connect_timeout=5, read_timeout=10, retries={"max_attempts": 2}, **settings),
    )


def abort_below(store: RemoteFiles) -> None:
    """Abort all uploads to a folder of S3 that is about to be removed: a lost machine cannot abort its own.

    Nothing is aborted if `boto3` is not installed, or the user may not list uploads.
    """
    if store.target.startswith(("s3://", "s3a://")):
        bucket, _, prefix = store.target.partition("://")[2].partition("/")
        try:
            _abort_all(_boto_client(store), bucket, f"{prefix}/")
        except Exception as error:  # from boto3 or a credential provider, or because boto3 is not installed
            logger.debug("%s: interrupted uploads were not looked for: %s", store.url, error)


def _abort_all(client: Any, bucket: str, prefix: str, key: str | None = None) -> None:
    """Abort the uploads of the objects with a prefix, or of one object."""
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix):
        for unfinished in page.get("Uploads", []):
            if key is None or unfinished["Key"] == key:
                client.abort_multipart_upload(Bucket=bucket, Key=unfinished["Key"], UploadId=unfinished["UploadId"])


def abort(store: RemoteFiles, url: str) -> bool:
    """Abort the unfinished uploads of an object; return False if one may be left."""
    if not url.startswith(("s3://", "s3a://")):
        # Azure deletes uncommitted blocks after a week; on Google's store a lifecycle rule of the bucket does.
        logger.warning("%s: an upload was interrupted; the bucket's lifecycle rules remove its parts", url)
        return True
    bucket, _, key = url.partition("://")[2].partition("/")
    try:
        _abort_all(_boto_client(store), bucket, key, key)
    except Exception as error:  # from boto3 or a credential provider, or because boto3 is not installed
        logger.warning(
            "%s: the parts of an interrupted upload are still in the store: %s. Abort the upload (aws s3api"
            " abort-multipart-upload), or add a lifecycle rule to the bucket.",
            url,
            error,
        )
        return False
    return True
