from __future__ import annotations

import json
import subprocess
import sys

import pytest

import feedmill as fm
from feedmill.errors import ConfigError, FeedmillError
from feedmill.storage import LocalStore, join_url, open_store, refuse_secrets, split_url


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("file:///data/x", "/data/x"),
        ("file://localhost/data/x", "/data/x"),
        ("file:///data/with%20space", "/data/with space"),
        ("/data/x/", "/data/x"),
        ("/", "/"),
    ],
)
def test_file_urls_and_paths_are_local(url, root):
    store = open_store(url)
    assert isinstance(store, LocalStore) and store.root == root


@pytest.mark.parametrize("url", ["a\0b", "\0", "file:///a%00b", "s3://bucket\0/x", "s3://bucket/a\0b"])
def test_a_nul_is_refused_wherever_a_path_comes_from(url):
    asks = [open_store, fm.open, lambda u: fm.open([f"{u}1.tar", f"{u}2.tar"]), lambda u: fm.Recipe.load(u).plan()]
    for ask in [*asks, lambda u: fm.Recipe.parse({"source": u}).plan(), lambda u: fm.Recipe.load(f"{u}.yaml")]:
        with pytest.raises(ConfigError, match="has a NUL character") as caught:
            ask(url)
        assert caught.value.kind == "bad-url" and "\0" not in str(caught.value)


def test_files_of_the_root_folder_have_one_slash():
    assert open_store("/").locate("etc/x") == "/etc/x"


@pytest.mark.parametrize("url", ["s3://", "nonsense://a/b"])
def test_an_unknown_scheme_is_an_error_that_lists_the_known_ones(url):
    with pytest.raises(ConfigError, match="s3://bucket/prefix"):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "folder", "name"),
    [
        ("a/b.tar", "a", "b.tar"),
        ("b.tar", ".", "b.tar"),
        ("/b.tar", "/", "b.tar"),
        ("/", "/", ""),
        ("s3://bucket/b.tar", "s3://bucket", "b.tar"),
        ("s3://bucket/a/b/", "s3://bucket/a", "b"),
        ("s3://bucket", "s3://bucket", ""),
        ("file:///a%20b/c%20d.tar", "/a b", "c d.tar"),
        ("file:///b.tar", "/", "b.tar"),
        ("file", ".", "file"),
    ],
)
def test_split(url, folder, name):
    assert split_url(url) == (folder, name)


@pytest.mark.parametrize(
    ("base", "path", "joined"),
    [
        ("/a/b", "c/d", "/a/b/c/d"),
        ("/a/b/", "../c", "/a/c"),
        ("/a", "../../x", "/x"),
        ("a", "../../x", "../x"),
        ("", "x", "x"),
        (".", "./x", "x"),
        ("..", "../x", "../../x"),
        ("/", "x", "/x"),
        ("/a", "..", "/"),
        ("s3://bucket/a", "../b", "s3://bucket/b"),
        ("s3://bucket", "b", "s3://bucket/b"),
        ("s3://bucket/a", "..", "s3://bucket"),
        ("/a", "/b", "/b"),
        ("/a", "s3://x/y", "s3://x/y"),
        ("/a", "file:b/c", "/a/b/c"),
        ("/a", "file:/b", "/b"),
        ("/a", "file:///b", "/b"),
    ],
)
def test_join(base, path, joined):
    assert join_url(base, path) == joined


def test_the_home_folder_is_filled_in(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert join_url("/a", "~/data") == "/home/me/data"
    assert join_url("/a", "b~/data") == "/a/b~/data"


def test_join_stays_in_the_bucket():
    with pytest.raises(ConfigError, match="leaves the bucket"):
        join_url("s3://bucket/a", "../../other/b")


def test_local_stores_do_not_load_the_client_of_remote_ones():
    code = "import feedmill.storage, sys; feedmill.storage.open_store('.'); print('obstore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY:SECRETX@bucket/a.jsonl",
        "https://user:SECRETX@host/a.jsonl",
        "sftp://user:SECRETX@host/a.jsonl",
        "https://host/a.jsonl?X-Amz-Algorithm=x&X-Amz-Signature=SECRETX",
        "https://host/a.jsonl?X-Goog-Signature=SECRETX",
        "https://host/a.jsonl?X-Amz-Security-Token=SECRETX",
        "az://container/a.jsonl?sv=1&sig=SECRETX",
        "s3://bucket/a?AWSAccessKeyId=SECRETX&Signature=SECRETX",
        "https://host/a.jsonl?token=SECRETX",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_shown(url: str) -> None:
    """Messages, reports, lineages and lists of processes show URLs."""
    for call in (open_store, lambda url: fm.open(url), lambda url: fm.tag([url], ["char_length_v1"], progress=False)):
        with pytest.raises(FeedmillError) as caught:
            call(url)
        shown = json.dumps([str(caught.value), caught.value.as_dict()])
        assert caught.value.kind == "bad-url" and "SECRETX" not in shown


@pytest.mark.parametrize(
    "url",
    ["hf://datasets/o/n@main/x", "s3://b@c/x", "github://o:r@main/x", "s3://bucket/sig=1/token=2", "s3://b/a?design=1"],
)
def test_other_urls_are_not_secrets(url: str) -> None:
    refuse_secrets(url)
