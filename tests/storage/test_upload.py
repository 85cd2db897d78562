"""Objects that are uploaded while they are written: whole or not at all, and no parts are left in the store."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from feedmill.errors import ConfigError, StorageError
from feedmill.storage import open_store
from feedmill.storage.remote import object_store
from feedmill.storage.remote.locks import ObjectLock
from helpers import warm

MIB = 1 << 20


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEEDMILL_UPLOAD_PART_MIB", "5")
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cache" / "uploads"


def unfinished(bucket: str) -> list[str]:
    found = boto3.client("s3").list_multipart_uploads(Bucket=bucket.removeprefix("s3://"))
    return sorted(one["Key"] for one in found.get("Uploads", []))


def test_a_large_object_is_sent_in_parts_and_appears_whole(s3_bucket, notes):
    store = open_store(s3_bucket)
    data = os.urandom(12 * MIB + 7)
    with store.write("large") as file:
        for start in range(0, len(data), 100_001):
            file.write(data[start : start + 100_001])
        assert file.tell() == len(data) and unfinished(s3_bucket) == ["large"]
        assert not store.exists("large") and len(os.listdir(notes)) == 1
    assert store.read("large") == data
    assert store.stat("large").version.endswith("-3")  # S3 marks a version made of three parts
    assert not unfinished(s3_bucket) and not os.listdir(notes)


def test_an_object_of_one_part_is_one_request(s3_bucket, notes):
    store = open_store(s3_bucket)
    store.write_bytes("small", b"123")
    store.write_bytes("empty", b"")
    assert store.read("small") == b"123" and store.read("empty") == b""
    assert "-" not in store.stat("small").version and not notes.exists()


@pytest.mark.parametrize("size", [3, 11 * MIB])
def test_after_an_error_the_old_object_stays_and_no_parts(s3_bucket, notes, size):
    store = open_store(s3_bucket)
    store.write_bytes("a", b"old")
    with pytest.raises(KeyError, match="mine"), store.write("a") as file:
        file.write(bytes(size))
        raise KeyError("mine")
    assert store.read("a") == b"old" and not unfinished(s3_bucket)
    assert not notes.exists() or not os.listdir(notes)


def test_what_is_built_in_place_is_sent_in_parts(s3_bucket):
    store = open_store(s3_bucket)
    data = os.urandom(11 * MIB)
    with store.build("built") as file:
        file.write_bytes(data)
    assert store.read("built") == data and store.stat("built").version.endswith("-3")


def test_an_object_of_too_many_parts_is_refused(s3_bucket, monkeypatch):
    monkeypatch.setattr(object_store, "_MOST_PARTS", 2)
    store = open_store(s3_bucket)
    with pytest.raises(StorageError, match="more than 2 parts of 5 MiB") as caught, store.write("a") as file:
        for _ in range(3):
            file.write(bytes(5 * MIB))
    assert caught.value.kind == "too-large" and not unfinished(s3_bucket) and not store.exists("a")
    with store.build("a") as path:  # of a known size
        path.write_bytes(bytes(12 * MIB))
    assert store.stat("a").version.endswith("-2")


@pytest.mark.parametrize("value", ["4", "5.5", "x", "9999"])
def test_a_bad_size_of_parts_is_refused(s3_bucket, monkeypatch, value):
    monkeypatch.setenv("FEEDMILL_UPLOAD_PART_MIB", value)
    with pytest.raises(ConfigError, match="expected a number from 5 to 5120"):
        open_store(s3_bucket).write_bytes("a", b"")


def test_a_part_that_is_refused_ends_the_write(s3_bucket, notes):
    store = open_store(s3_bucket + "-missing")
    with pytest.raises(StorageError) as caught, store.write("a") as file:
        for _ in range(8):
            file.write(bytes(5 * MIB))
    assert caught.value.kind == "no-bucket"


WRITER = """
import sys
from feedmill.storage import open_store
with open_store(sys.argv[1]).write(sys.argv[2]) as file:
    file.write(bytes(11 << 20))
    file.flush()
    print("sent", flush=True)
    sys.stdin.readline()
"""


def writer(bucket: str, path: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, bucket, path]
    process = warm.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "sent\n"
    until = time.monotonic() + 120
    while path not in unfinished(bucket) and time.monotonic() < until:
        time.sleep(0.02)
    return process


def test_the_parts_of_a_killed_process_are_removed_by_the_next_job_and_no_others(s3_bucket, notes):
    store = open_store(s3_bucket)
    killed, alive = writer(s3_bucket, "f/killed"), writer(s3_bucket, "f/alive")
    other = boto3.client("s3").create_multipart_upload(Bucket=store.host[5:], Key="f/killed-by-somebody")
    killed.kill()
    killed.wait()
    assert unfinished(s3_bucket) == ["f/alive", "f/killed", "f/killed-by-somebody"]
    with ObjectLock(store.below("elsewhere")):
        assert unfinished(s3_bucket) == ["f/alive", "f/killed-by-somebody"] and len(os.listdir(notes)) == 1
    alive.communicate("\n")
    assert alive.returncode == 0 and store.stat("f/alive").size == 11 * MIB and not os.listdir(notes)
    assert unfinished(s3_bucket) == [other["Key"]]


def test_without_boto3_a_warning_names_what_is_left_and_the_next_job_tries_again(s3_bucket, notes, monkeypatch, caplog):
    store = open_store(s3_bucket)
    killed = writer(s3_bucket, "killed")
    killed.kill()
    killed.wait()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "feedmill"):
        patch.setitem(sys.modules, "botocore", None)
        with ObjectLock(store):
            pass
    assert f"{s3_bucket}/killed: the parts of an interrupted upload are still in the store" in caplog.text
    assert "feedmill[s3]" in caplog.text and unfinished(s3_bucket) == ["killed"]
    with ObjectLock(store):
        assert not unfinished(s3_bucket) and not os.listdir(notes)
