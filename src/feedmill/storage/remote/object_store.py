"""Object stores and web servers as a `Store`, through `obstore` (``s3://``, ``gs://``, ``az://``, ``http(s)://``).

`open_store` returns a `RemoteStore` for these schemes. An object appears as a whole, when the block that writes it
ends. An object store has no folders: a folder exists while it has objects.

The small files of a dataset are read all at once, before they are needed (`preload`), so that opening it takes few
round trips.

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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from feedmill.errors import ConfigError, FeedmillError, MissingExtra, NotFound, StorageError
from feedmill.storage.base import Entry, too_short
from feedmill.storage.fetching.fetch import WHOLE, fetcher, waiting
from feedmill.storage.folders import spool_error
from feedmill.storage.remote.errors import Reaction, is_beyond_end, reaction_to, status_of, translate
from feedmill.storage.remote.forking import guard_against_fork
from feedmill.storage.remote.msc import resolve
from feedmill.storage.remote.options import Patience, connect, connect_for_ranges, patience_of
from feedmill.storage.remote.range_store import SINGLE_LOOKUPS, RangeStore, Seen, is_listed
from feedmill.storage.remote.upload_records import Record, abort_abandoned

if TYPE_CHECKING:
    from obstore import Bytes, ObjectMeta, WritableFile
    from obstore.store import ObjectStore

logger = logging.getLogger("feedmill")

_STEP = 8 << 20
_PART = 16 << 20
_PARTS_IN_FLIGHT = 4
_MOST_PARTS = 10_000  # the limit of S3
_BUFFER = 1 << 20  # many writers write a few bytes at a time
SMALL, HEAD = 256 << 10, 64
"""Bytes of an object that are preloaded: of a small one, of which larger ones have the beginning; and of a head."""


class RemoteStore(RangeStore):
    """A bucket, a prefix of one, or a folder of a web server.

    Args:
        url: ``s3://bucket/prefix``, ``gs://...``, ``az://...`` or ``https://host/folder``.
        options: settings of `obstore` that override the environment, for example ``endpoint``, ``region``,
            ``skip_signature``, ``client_options``, ``retry_config``. They may hold secrets.

    Attributes:
        settings: `options`, and those of the URL's profile that they do not override.

    Raises:
        ConfigError: the URL or an option is invalid.
    """

    def __init__(self, url: str, **options: Any) -> None:
        location = resolve(url)
        super().__init__(url, location.url)
        self.options, self.settings = options, {**location.options, **options}
        self._hasty = connect(self.target, self.settings, patient=False)
        self._patient: ObjectStore | None = None
        self._reader: ObjectStore | None = None
        self._brisk: ObjectStore | None = None
        self._preloaded: dict[str, SmallObject] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.url, self.options)

    def below(self, folder: str) -> RemoteStore:
        return RemoteStore(f"{self.url}/{self.check_path(folder)}", **self.options)

    def __repr__(self) -> str:
        return f"RemoteStore({self.url!r})"  # options may hold secrets

    @property
    def client(self) -> ObjectStore:
        """Return the client for requests. It retries for longer once this bucket or server has answered."""
        if not self.has_answered:
            return self._hasty
        if self._patient is None:
            self._patient = connect(self.target, self.settings, patient=True)
        return self._patient

    @property
    def reader(self) -> ObjectStore:
        """Return the client for ranges. It does not retry: `feedmill.storage.fetching.fetch` does."""
        if self._reader is None:
            self._reader = connect_for_ranges(self.target, self.settings)
        return self._reader

    @property
    def lists(self) -> bool:
        return not self.target.startswith("http")

    @property
    def brisk_reader(self) -> ObjectStore:
        """Return the client for ranges with a shorter time limit; see `connect_for_ranges`."""
        if self._brisk is None:
            self._brisk = connect_for_ranges(self.target, self.settings, brisk=True)
        return self._brisk

    def reconnect(self) -> None:
        self.settings = {**resolve(self.url).options, **self.options}
        self._reader = self._brisk = self._patient = None
        self._hasty = connect(self.target, self.settings, patient=False)

    def patience(self) -> Patience:
        return patience_of(self.settings, patient=self.has_answered)

    def request_once(self, key: str, begin: int, end: int, *, brisk: bool = False) -> Bytes:
        import obstore

        reader = self.brisk_reader if brisk else self.reader
        answer = obstore.get(reader, key, options={} if end == WHOLE else {"range": (begin, end)})
        self.answered()
        if end != WHOLE:
            entry = entry_of(key, answer.meta)
            self.check_version(key, entry.version)
            self.note_entry(entry)
        return answer.bytes()

    def forget(self, key: str) -> None:
        super().forget(key)
        self._preloaded.pop(key, None)

    def reaction_to(self, error: BaseException) -> Reaction:
        return reaction_to(error)

    def translate(self, error: BaseException, url: str) -> FeedmillError | None:
        return translate(error, url)

    def is_beyond_end(self, error: BaseException) -> bool:
        return is_beyond_end(error)

    def files(self, prefix: str = "", *, suffixes: Sequence[str] = (), hidden: bool = False) -> Iterator[Entry]:
        import obstore

        folder = "/".join(part for part in self.check_path(prefix).split("/") if part not in ("", "."))
        skip, endings, empty = len(folder) + 1 if folder else 0, tuple(suffixes), True
        entries: list[Entry] = []
        with self.requesting(prefix):
            # Most web servers cannot list, and their errors would make the other client retry.
            client = self.client if self.lists else self.reader
            for page in obstore.list(client, prefix=folder or None, chunk_size=1000):
                empty = False
                listed = (meta for meta in page if is_listed(meta["path"][skip:], endings, hidden))
                entries.extend(entry_of(meta["path"], meta) for meta in listed)
        if empty:
            raise NotFound("there is no such folder", file=self.locate(folder), fix="Check the URL.")
        # Stores list folder markers ("a/") as empty files with the name of the folder.
        folders = {parent for entry in entries for parent in _parents(entry.path)}
        entries = [entry for entry in entries if entry.size or entry.path not in folders]
        entries.sort(key=lambda entry: entry.path)
        yield from entries

    def is_folder(self, path: str = "") -> bool:
        import obstore

        prefix = self.check_path(path).strip("/") or None
        with self.requesting(path):
            return any(len(page) for page in obstore.list(self.client, prefix=prefix, chunk_size=1))

    def modified(self, path: str) -> float:
        with self.requesting(path):
            return self._head(self.key(path))["last_modified"].timestamp()

    def stat(self, path: str) -> Entry:
        key = self.key(path)
        with self.requesting(path):
            small = self._preloaded.get(key)
            if small is None:
                return entry_of(path, self._head(key))
            if small.entry is None:
                raise FileNotFoundError(key)
            return small.entry._replace(path=path)

    def _head(self, key: str) -> ObjectMeta:
        import obstore

        try:
            return obstore.head(self.client, key)
        except Exception as error:
            if status_of(error) in ("400", "403"):  # a HEAD answer has no body: the error of a GET has the reason
                obstore.get(self.client, key, options={"range": (0, 1)})
            raise

    def preload(self, paths: Sequence[str], heads: Sequence[str] = ()) -> None:
        guard_against_fork(self.url)
        if not paths and not heads:
            self._preloaded = {}
            return
        sizes = {self.key(path): SMALL for path in paths} | {self.key(path): HEAD for path in heads}
        missing = {key: size for key, size in sizes.items() if key not in self._preloaded}
        self._preloaded = {**self._preloaded, **preload(self, missing)}

    def _list_entries(self, keys: Sequence[str]) -> None:
        """Read the entries of objects in one folder from listings, while each page has more than a few of them."""
        import obstore

        folder = os.path.commonpath(keys) if len(keys) > 1 else keys[0].rpartition("/")[0]
        remaining = set(keys)
        with contextlib.suppress(StorageError), self.requesting(folder):  # some users may read but not list
            for page in obstore.list(self.client, prefix=folder or None, chunk_size=1000):
                entries = [entry_of(meta["path"], meta) for meta in page if meta["path"] in remaining]
                self._entries.update((entry.path, entry) for entry in entries)
                remaining.difference_update(entry.path for entry in entries)
                if len(entries) <= SINGLE_LOOKUPS or not remaining:
                    break
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None:
                self.pin_version(key, entry.version)

    def read_ranges(self, path: str, offsets: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        small = self._preloaded.get(self.key(path))
        if small is None or small.entry is None:
            return super().read_ranges(path, offsets, lengths)
        rows, there = zip(offsets, lengths, strict=True), len(small.data)
        found = [small.data[at : at + n] if 0 <= at <= at + n <= there else None for at, n in rows]
        missing = [number for number, data in enumerate(found) if data is None]
        others = iter(super().read_ranges(path, *([of[number] for number in missing] for of in (offsets, lengths))))
        return [next(others) if data is None else data for data in found]

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        import obstore

        if length is not None:
            return self.read_ranges(path, [offset], [length])[0]
        key = self.key(path)
        small = self._preloaded.get(key)
        if small is not None and small.is_whole:
            return small.data[offset:]
        with self.requesting(path):
            if not offset:
                with waiting():
                    return bytes(memoryview(fetcher().request(self, key, 0, WHOLE)))
            try:
                return obstore.get(self.client, key, options={"range": {"offset": offset}}).bytes().to_bytes()
            except Exception as error:
                if is_beyond_end(error):
                    return b""
                raise

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


def _rebuild(url: str, options: dict[str, Any]) -> RemoteStore:
    return RemoteStore(url, **options)


def _parents(path: str) -> Iterator[str]:
    """Yield the folders above a path."""
    slash = path.rfind("/")
    while slash > 0:
        yield path[:slash]
        slash = path.rfind("/", 0, slash)


class SmallObject(NamedTuple):
    """A preloaded object.

    Attributes:
        entry: its entry; None if there is no such object.
        data: its first bytes, at most as many as were asked for.
    """

    entry: Entry | None
    data: bytes = b""

    @property
    def is_whole(self) -> bool:
        """Return whether all its bytes are there."""
        return self.entry is not None and len(self.data) == self.entry.size


def preload(store: RemoteStore, sizes: Mapping[str, int]) -> dict[str, SmallObject]:
    """Return objects by key, with one request for each, all at once. Objects whose request failed are omitted.

    In a block of `preloaded_once`, objects that were preloaded in it are not requested again.

    Args:
        sizes: number of bytes to request of each object, by key.
    """
    stores = _kept.get()
    kept: dict[str, SmallObject] = {} if stores is None else stores.setdefault(store.url, {})
    objects = {key: kept[key] for key in sizes if key in kept}
    missing = [(key, size) for key, size in sizes.items() if key not in kept]
    for key, future in [(key, fetcher().run(0, _read, store, key, size)) for key, size in missing]:
        try:
            objects[key] = future.result()
        except (Exception, CancelledError) as error:  # a later read requests it again and raises the error
            if isinstance(translate(error, key), NotFound):
                objects[key] = SmallObject(None)
    kept.update(objects)
    return objects


_kept: ContextVar[dict[str, dict[str, SmallObject]] | None] = ContextVar("preloaded objects by store", default=None)


@contextlib.contextmanager
def preloaded_once() -> Iterator[None]:
    """Preload the small files of a dataset once in a block that opens it several times, such as for its splits."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def _read(store: RemoteStore, key: str, size: int) -> SmallObject:
    import obstore

    answer = obstore.get(store.reader, key, options={"range": (0, size)})
    return SmallObject(entry_of(key, answer.meta), answer.bytes().to_bytes())


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
def upload(store: RemoteStore, path: str, *, size: int = 0) -> Iterator[BinaryIO]:
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

    def __init__(self, store: RemoteStore, path: str, part: int) -> None:
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


def _boto_client(store: RemoteStore) -> Any:
    """Return a client of botocore, on which boto3 is built: `obstore` cannot list unfinished uploads."""
    try:
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.session import Session
    except ImportError:
        raise MissingExtra("boto3 is not installed", "s3") from None
    options = store.settings
    settings = {"signature_version": UNSIGNED} if options.get("skip_signature") else {}
    session = Session(profile=options.get("profile"))
    session.register_component("data_loader", _models(session.get_config_variable("data_path")))
    return session.create_client(
        "s3",
        endpoint_url=options.get("endpoint")
        or os.environ.get("AWS_ENDPOINT"),  # botocore reads the other variables itself
        region_name=options.get("region") or os.environ.get("AWS_REGION"),
        aws_access_key_id=options.get("access_key_id"),
        aws_secret_access_key=options.get("secret_access_key"),
        aws_session_token=options.get("session_token"),
        config=Config(connect_timeout=5, read_timeout=10, retries={"max_attempts": 2}, **settings),
    )


@cache
def _models(path: str | None) -> Any:
    """Return what botocore knows of services: each session would read it again, for a tenth of a second."""
    from botocore.loaders import create_loader

    return create_loader(path)


def abort_below(store: RemoteStore) -> None:
    """Abort all uploads to a folder of S3 that is about to be removed: a lost machine cannot abort its own.

    Nothing is aborted if `boto3` is not installed, or the user may not list uploads.
    """
    if store.target.startswith(("s3://", "s3a://")):
        bucket, _, prefix = store.target.partition("://")[2].partition("/")
        try:
            _abort_all(_boto_client(store), bucket, f"{prefix}/")
        except Exception as error:  # from botocore or a credential provider, or as that is not installed
            logger.debug("%s: interrupted uploads were not looked for: %s", store.url, error)


def _abort_all(client: Any, bucket: str, prefix: str, key: str | None = None) -> None:
    """Abort the uploads of the objects with a prefix, or of one object."""
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix):
        for unfinished in page.get("Uploads", []):
            if key is None or unfinished["Key"] == key:
                client.abort_multipart_upload(Bucket=bucket, Key=unfinished["Key"], UploadId=unfinished["UploadId"])


def abort(store: RemoteStore, url: str) -> bool:
    """Abort the unfinished uploads of an object; return False if one may be left."""
    if not url.startswith(("s3://", "s3a://")):
        # Azure deletes uncommitted blocks after a week; on Google's store a lifecycle rule of the bucket does.
        logger.warning("%s: an upload was interrupted; the bucket's lifecycle rules remove its parts", url)
        return True
    bucket, _, key = url.partition("://")[2].partition("/")
    try:
        _abort_all(_boto_client(store), bucket, key, key)
    except Exception as error:  # from botocore or a credential provider, or as that is not installed
        logger.warning(
            "%s: the parts of an interrupted upload are still in the store: %s. Abort the upload (aws s3api"
            " abort-multipart-upload), or add a lifecycle rule to the bucket.",
            url,
            error,
        )
        return False
    return True
