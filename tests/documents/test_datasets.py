import os

import pytest

from feedmill.documents.find import find_in_datasets
from feedmill.errors import ConfigError, FeedmillError


def find_documents(patterns, documents="documents", warnings=None, exact=False):
    found = [] if warnings is None else warnings
    return find_in_datasets(patterns, found, documents, exact=exact, allow_missing=warnings is not None)


FILES = ["a/documents/x.gz", "a/documents/y/1.gz", "a/documents/y/2.gz", "a/documents/y/z/3.gz", "a/documents/.hidden"]


@pytest.fixture(autouse=True)
def _tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        (["a/documents"], ["x.gz", "y/1.gz", "y/2.gz", "y/z/3.gz"]),
        (["a/documents/*"], ["x.gz", "y/1.gz", "y/2.gz", "y/z/3.gz"]),
        (["a/documents/**"], ["x.gz", "y/1.gz", "y/2.gz", "y/z/3.gz"]),
        (["a/documents/**/*.gz"], ["x.gz", "y/1.gz", "y/2.gz", "y/z/3.gz"]),
        (["a/documents/*/?.gz"], ["y/1.gz", "y/2.gz"]),
        (["a/documents/y/[!1].gz"], ["y/2.gz"]),
        (["a/documents/y"], ["y/1.gz", "y/2.gz", "y/z/3.gz"]),
        (["a/documents/y/2.gz", "a/documents/**"], ["y/2.gz", "x.gz", "y/1.gz", "y/z/3.gz"]),
        (["a/documents/.*"], [".hidden"]),
    ],
)
def test_patterns(patterns, wanted):
    found = find_documents(patterns)
    assert [file.path.removeprefix("documents/") for file in found] == wanted
    assert {file.folder for file in found} == {"a"} and found[0].name == f"a/documents/{wanted[0]}"


def test_dolmas_wildcards_match_files_only():
    assert [file.path for file in find_documents(["a/documents/*"], exact=True)] == ["documents/x.gz"]
    assert len(find_documents(["a/documents/**"], exact=True)) == 4


def test_a_pattern_that_matches_nothing_is_a_warning():
    warnings = []
    assert len(find_documents(["a/documents/y/?.gz", "a/documents/*.zst"], warnings=warnings)) == 2
    assert warnings == ["no file matches a/documents/*.zst"]


@pytest.mark.parametrize(
    "pattern", ["a/documents/*.zst", "a/x.gz", "*/document/x.gz", "b/documents", "", "b/doc*/x.gz"]
)
def test_what_leads_nowhere(pattern):
    with pytest.raises(FeedmillError):
        find_documents([pattern])


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("a/doc*/x.gz", ["a/documents/x.gz"]),
        ("a/doc*/y/*", ["a/documents/y/1.gz", "a/documents/y/2.gz"]),
        ("a/d[o]cument?/**", [f"a/{name[2:]}" for name in FILES[:4]]),
        ("*/documents/x.gz", ["a/documents/x.gz", "b/documents/x.gz"]),
        ("*/doc*/*", ["a/documents/x.gz", "b/documents/x.gz"]),
        ("**/x.gz", ["a/documents/x.gz", "b/documents/x.gz"]),
        ("?/*/y/[!1]*", ["a/documents/y/2.gz"]),
    ],
)
@pytest.mark.parametrize("how", ["relative", "absolute", "a URL"])
def test_wildcards_for_the_folder_of_documents_and_for_the_dataset(tmp_path, pattern, wanted, how):
    """As Dolma takes them: the files that match say where they belong."""
    (tmp_path / "b/documents").mkdir(parents=True)
    (tmp_path / "b/documents/x.gz").write_bytes(b"x")
    (tmp_path / "b/.feedmill/documents").mkdir(parents=True)
    (tmp_path / "b/.feedmill/documents/x.gz").write_bytes(b"x")
    before = {"relative": "", "absolute": f"{tmp_path}/", "a URL": f"file://{tmp_path}/"}[how]
    found = find_documents([f"{before}{pattern}"], exact=True)
    plain = before.removeprefix("file://")
    assert [file.name for file in found] == [f"{plain}{name}" for name in wanted]
    assert [f"{file.folder}/{file.path}" for file in found] == [f"{plain}{name}" for name in wanted]
    assert all(file.path.startswith("documents/") for file in found)
    assert find_documents([*{file.name for file in found[:1]}, f"{before}{pattern}"], exact=True) == found


def test_a_file_that_matches_outside_of_documents_is_named(tmp_path):
    (tmp_path / "a/dock").mkdir()
    (tmp_path / "a/dock/x.gz").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"a/dock/x\.gz' has no folder 'documents'"):
        find_documents(["a/doc*/x.gz"])


def test_wildcards_for_the_folder_of_documents_in_object_stores(s3_bucket):
    from feedmill.storage import open_store

    for name in ("c/documents/1.gz", "d/documents/2.gz", "d/attributes/n/2.gz"):
        open_store(s3_bucket).write_bytes(name, b"x")
    found = find_documents([f"{s3_bucket}/*/doc*/*.gz"])
    assert [file.name for file in found] == [f"{s3_bucket}/c/documents/1.gz", f"{s3_bucket}/d/documents/2.gz"]
    assert found[0].folder == f"{s3_bucket}/c"


def test_another_name_of_the_folder():
    found = find_documents(["a/documents/y/**"], "y")
    assert (found[0].folder, found[0].path) == ("a/documents", "y/1.gz")
    assert found[0].attributes("dup", "y") == "attributes/dup/1.gz"


def test_a_file_comes_once_however_its_data_set_is_spelled(tmp_path):
    (tmp_path / "link").symlink_to("a")
    here = ["a", "./a", "a/", f"{tmp_path}/a", f"file://{tmp_path}/a", "link", "x/../a"]
    (tmp_path / "x").mkdir()
    for first in here:
        found = find_documents([f"{first}/documents", *(f"{root}/documents/**/*.gz" for root in here)])
        assert [file.path.removeprefix("documents/") for file in found] == ["x.gz", "y/1.gz", "y/2.gz", "y/z/3.gz"]
        assert {file.folder for file in found} == {first.removeprefix("file://")}
    assert len(find_documents(["a/documents/./x.gz", "a/documents//x.gz", "a/documents/x.gz"])) == 1


def test_names_with_brackets_are_names_where_they_are_there(tmp_path):
    (tmp_path / "b[1]/documents/[y]").mkdir(parents=True)
    (tmp_path / "b[1]/documents/[y]/p[0].gz").write_bytes(b"x")
    for pattern in ("b[1]/documents", "b[1]/documents/[y]", "b[1]/documents/[y]/p[0].gz", "b[1]/documents/*/*"):
        assert [file.name for file in find_documents([pattern])] == ["b[1]/documents/[y]/p[0].gz"]


def test_names_that_are_no_text_are_refused(tmp_path):
    (tmp_path / os.fsdecode(b"a/documents/\xff.gz")).write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"documents/\\udcff\.gz: the name is not valid UTF-8"):
        find_documents(["a/documents"])


def test_a_file_url_may_have_escapes(tmp_path):
    (tmp_path / "b c/documents/d e").mkdir(parents=True)
    (tmp_path / "b c/documents/d e/f g.gz").write_bytes(b"x")
    for below in ("", "/d%20e", "/d%20e/f%20g.gz", "/*/f%20g.gz"):
        found = find_documents([f"file://{tmp_path}/b%20c/documents{below}"])
        assert [file.name for file in found] == [f"{tmp_path}/b c/documents/d e/f g.gz"]
