"""Shards named by patterns and lists; commands are refused."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.sniff import sniff
from feedmill.formats.tar.names import expand_patterns
from feedmill.planning.recipes.recipe import Recipe
from feedmill.samples.open import open as open_dataset
from feedmill.storage.local import publish
from helpers import foreign_datasets as sourcedata
from helpers import warm
from helpers.tars import make_shards, write_tar

COUNTS = [3, 2, 4]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_shards(tmp_path, COUNTS)


def numbers(url: object) -> list[int]:
    return [sample["json"]["n"] for sample in open_dataset(url)]  # type: ignore[call-overload]


def test_braces_globs_and_lists(root: Path) -> None:
    shards = [str(root / f"shards/shard_{n:03d}.tar") for n in range(3)]
    whole = list(range(9))
    assert numbers(root / "shards/shard_{000..002}.tar") == whole
    assert numbers(root / "shards/shard_*.tar") == numbers(root / "**/*.tar") == numbers(shards) == whole
    assert numbers(root / "shards/shard_00[02].tar") == [0, 1, 2, 5, 6, 7, 8]
    assert numbers(root / "shards/shard_00[!1].tar") == [0, 1, 2, 5, 6, 7, 8]
    assert numbers(root / "shards/shard_{002,000}.tar") == [5, 6, 7, 8, 0, 1, 2]  # the order of the braces holds
    assert numbers([shards[2], root / "shards/shard_00{0..1}.tar"]) == [5, 6, 7, 8, 0, 1, 2, 3, 4]
    assert numbers([shards[1]]) == [3, 4]


def test_files_that_look_like_patterns_are_files(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "odd{1,2}[x].tar", [("a.json", b'{"n": 1}')])
    assert numbers(path) == [1]


def test_lists_of_tables(tmp_path: Path) -> None:
    sourcedata.parquet(tmp_path, COUNTS)
    dataset = open_dataset(tmp_path / "{2,0}.parquet")
    assert [sample["n"] for sample in dataset] == [5, 6, 7, 8, 0, 1, 2]
    assert dataset.locate(0).where == str(tmp_path / "2.parquet")


def test_folders_that_look_like_patterns_are_folders(tmp_path: Path) -> None:
    """Before, a pattern in ``run[1]`` read the files of ``run1`` without a word."""
    for folder, keys in (("run[1]", "abc"), ("run1", "xy"), ("run{1,2}", "defg")):
        write_tar(tmp_path / folder / "0.tar", [(f"{key}.txt", b"x") for key in keys])
        for name in (folder, f"{folder}/0.tar", f"{folder}/*.tar", f"{folder}/{{0..0}}.tar", f"{folder}/**"):
            assert [sample.key for sample in open_dataset(f"{tmp_path}/{name}")] == list(keys), name
    for name, count in (("run?1]/*.tar", 3), ("{run1,run[1]}/*.tar", 5)):
        assert len(open_dataset(f"{tmp_path}/{name}")) == count


def test_patterns_match_hidden_files_only_with_a_dot(tmp_path: Path) -> None:
    """Such as those that a killed program left beside the whole ones."""
    for name in ("a.tar", ".tmp-b.tar", "s/c.tar", "s/.d/e.tar"):
        write_tar(tmp_path / name, [(f"{name[-5]}.txt", b"x")])
    for pattern, keys in (("*.tar", "a"), ("**/*.tar", "ac"), ("**", "ac"), ("{a,s/c}.tar", "ac"), (".*.tar", "b")):
        assert "".join(sample.key for sample in open_dataset(f"{tmp_path}/{pattern}")) == keys, pattern


def test_patterns_in_object_stores(root: Path, s3_bucket: str) -> None:
    from feedmill.storage import open_store

    store = open_store(f"{s3_bucket}/plain")
    for path in sorted(root.rglob("*.tar")):
        store.write_bytes(path.relative_to(root).as_posix(), path.read_bytes())
    assert numbers(f"{s3_bucket}/plain/shards/shard_{{000..002}}.tar") == list(range(9))
    assert numbers(f"{s3_bucket}/plain/*/shard_00[12].tar") == list(range(3, 9))


@pytest.mark.parametrize(
    "url",
    [
        "pipe:aws s3 cp s3://b/x.tar -",
        "x.tar::pipe:touch pwned",
        "pipe:cat shards/{0..3}.tar",
        "http://h/x.tar::gunzip",
        "${HOME}/x.tar",
    ],
)
def test_commands_are_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for asked in (url, [url, "y.tar"]):
        with pytest.raises(ConfigError) as error:
            open_dataset(asked)
        assert error.value.kind == "unsafe-name" and error.value.fix
    shown = CliRunner().invoke(app, ["show", url])
    assert shown.exit_code == 1 and "Traceback" not in shown.output
    assert not list(tmp_path.iterdir())


def test_what_is_not_there(root: Path) -> None:
    with pytest.raises(NotFound, match=r"no file matches this pattern"):
        open_dataset(root / "*.nothing.tar")
    with pytest.raises(NotFound, match=r"shard_003.tar: there is no such file"):
        open_dataset(root / "shards/shard_{000..003}.tar")
    with pytest.raises(ConfigError, match="listed twice"):
        open_dataset(root / "shards/shard_00{0,0}.tar")
    with pytest.raises(ConfigError, match="invalid pattern"):
        open_dataset(root / "shards/shard_[9-0].tar")
    with pytest.raises(ConfigError, match="more than"):
        expand_patterns(["x{0..99999999}.tar"])


PACK = {".tar.gz": gzip.compress, ".tgz": gzip.compress, ".tar.bz2": bz2.compress, ".tar.xz": lzma.compress}


@pytest.mark.parametrize("end", PACK)
def test_compressed_tars_are_unpacked_once(tmp_path: Path, end: str) -> None:
    for number in range(3):
        files = [(f"{number}{i}.json", json.dumps({"n": 10 * number + i}).encode()) for i in range(2)]
        write_tar(tmp_path / f"d/x-{number}.tar", files)
        (tmp_path / f"d/x-{number}.tar").rename(tmp_path / "plain.tar")
        (tmp_path / f"d/x-{number}{end}").write_bytes(PACK[end]((tmp_path / "plain.tar").read_bytes()))
    expected = [0, 1, 10, 11, 20, 21]
    ds = open_dataset(tmp_path / "d")
    assert numbers(tmp_path / "d") == expected and ds.find("11") == 3
    assert numbers(tmp_path / "d" / f"x-1{end}") == [10, 11]
    assert numbers(str(tmp_path / "d" / "x-{0,2}") + end) == [0, 1, 20, 21]
    copies = sorted(Path(ds.describe()["unpacked"]).glob("*.tar"))
    assert [copy.name for copy in copies] == ["x-0.tar", "x-1.tar", "x-2.tar"]
    before = [copy.stat().st_mtime_ns for copy in copies]
    (tmp_path / f"d/x-2{end}").write_bytes(PACK[end]((tmp_path / "plain.tar").read_bytes() + bytes(512)))
    assert numbers(tmp_path / "d") == expected
    after = [copy.stat().st_mtime_ns for copy in copies]
    assert after[:2] == before[:2] and after[2] != before[2]


@pytest.mark.parametrize("end", PACK)
def test_plain_and_compressed_tars_are_read_together_only_if_nothing_is_dropped(tmp_path: Path, end: str) -> None:
    """A compressed copy beside its tar is skipped with a remark; others are the user's choice."""
    for number in range(2):
        write_tar(tmp_path / f"d/x-{number}.tar", [(f"{number}.json", json.dumps({"n": number}).encode())])
    (tmp_path / f"d/x-1{end}").write_bytes(PACK[end]((tmp_path / "d/x-1.tar").read_bytes()))
    assert numbers(tmp_path / "d") == [0, 1]
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "d")])
    assert f"x-1{end}: skipped, the tar of the same name is read" in shown.output
    (tmp_path / "d/x-1.tar").unlink()
    with pytest.raises(ConfigError, match=rf"1 plain tars, and compressed ones .* 1 file \(x-1{end}\)") as error:
        open_dataset(tmp_path / "d")
    assert error.value.kind == "mixed-formats" and "'FOLDER/*.tar'" in str(error.value.fix)
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "d")])
    assert shown.exit_code == 1 and "x-1" in shown.output and "Traceback" not in shown.output
    assert numbers(tmp_path / "d/*.tar") == [0] and numbers(str(tmp_path / "d/*") + end) == [1]


@pytest.mark.parametrize("at", [1, 2])
def test_unpacking_that_was_killed_is_done_again(tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the shard is published (1), or between it and its note (2)."""
    tar = write_tar(tmp_path / "p.tar", [("0.json", b'{"n": 1}')]).read_bytes()
    (tmp_path / "a.tgz").write_bytes(gzip.compress(tar))
    calls: list[str] = []

    def killed(temporary: str, final: str) -> None:
        calls.append(final)
        if len(calls) == at:
            raise KeyboardInterrupt
        publish(temporary, final)

    with monkeypatch.context() as patch:
        patch.setattr("feedmill.formats.unpacked.publish", killed)
        with pytest.raises(KeyboardInterrupt):
            open_dataset(tmp_path / "a.tgz")
    ds = open_dataset(tmp_path / "a.tgz")
    assert [sample["json"]["n"] for sample in ds] == [1]
    left = sorted(path.name for path in Path(ds.describe()["unpacked"]).iterdir())
    assert left == ["a.tar", "a.tar.hash"]


def test_processes_unpack_a_shard_once(tmp_path: Path) -> None:
    files = [(f"{n}.bin", bytes([n % 256]) * 5000) for n in range(400)]
    tar = write_tar(tmp_path / "p.tar", files).read_bytes()
    for number in range(3):
        (tmp_path / f"d{number}.tar.gz").write_bytes(gzip.compress(tar, 1))
    (tmp_path / "p.tar").unlink()
    code = (
        f"import feedmill as fm; ds = fm.open({str(tmp_path)!r}); assert len(ds) == 1200, len(ds); print(ds[1199].key)"
    )
    running = [warm.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=120)[0].strip() for process in running] == ["399"] * 3


def test_compressed_tars_are_converted_whole_and_not_prepared(tmp_path: Path) -> None:
    for number in range(2):
        plain = write_tar(tmp_path / "p.tar", [(f"{number}.json", json.dumps({"n": number}).encode())])
        (tmp_path / "d").mkdir(exist_ok=True)
        (tmp_path / f"d/{number}.tgz").write_bytes(gzip.compress(plain.read_bytes()))
    shown = CliRunner().invoke(app, ["convert", str(tmp_path / "d"), str(tmp_path / "out"), "--to", "wds"])
    assert shown.exit_code == 0 and "lost" not in shown.output, shown.output
    assert numbers(tmp_path / "out") == [0, 1]
    for verb in (["prepare"], ["check"]):
        shown = CliRunner().invoke(app, [*verb, str(tmp_path / "d")])
        assert shown.exit_code == 1 and "copy the dataset with 'feedmill convert'" in shown.output


def test_compressed_tars_that_are_damaged_or_grow_without_end(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "p.tar", [("0.json", b'{"n": 1}')]).read_bytes()
    for name, data, why in (
        ("cut.tar.gz", gzip.compress(tar)[:-9], "corrupt or truncated"),
        ("none.tgz", gzip.compress(b""), "is empty"),
        ("bomb.tar.bz2", bz2.compress(bytes(80 << 20)), "unpacks to more than the limit"),
        ("odd.tar.zst", b"\x28\xb5\x2f\xfd" + bytes(600), "corrupt or truncated"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=why) as error:
            open_dataset(tmp_path / name)
        assert name in str(error.value.file) and error.value.fix


def test_check_and_preview_take_patterns(root: Path) -> None:
    url = str(root / "shards/shard_{000..002}.tar")
    assert "no problems found (9 samples in 3 shards" in CliRunner().invoke(app, ["check", url]).output
    assert "s00004" in CliRunner().invoke(app, ["show", url, "--start", "4", "-n", "1"]).output
    (root / "shards/shard_001.tar").write_bytes((root / "shards/shard_001.tar").read_bytes()[:700])
    checked = CliRunner().invoke(app, ["check", url])
    assert checked.exit_code == 1 and "shard_001.tar" in checked.output
    repaired = CliRunner().invoke(app, ["edit", "repair", url])
    assert repaired.exit_code == 1 and "Repair the folder of its shards" in repaired.output


def test_names_are_not_filled_in_from_the_environment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"contains \$DATA: environment variables in names are not expanded"):
        sniff(f"{tmp_path}/$DATA/x")
    (tmp_path / "$DATA").mkdir()
    write_tar(tmp_path / "$DATA/a.tar", [("0.txt", b"a")])
    assert sniff(f"{tmp_path}/$DATA").kind == "webdataset"  # a folder that is there
    (tmp_path / "recipe.yaml").write_text("source: {path: $ELSEWHERE/x}\n")
    with pytest.raises(ConfigError, match=r"contains \$ELSEWHERE: .*Write the whole path"):
        Recipe.load(tmp_path / "recipe.yaml").plan()


def test_webdatasets_own_spelling_of_a_file_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(tmp_path / "a.tar", [("0.txt", b"a")])
    assert len(open_dataset(f"file:{tmp_path}/a.tar")) == 1
    monkeypatch.chdir(tmp_path)
    assert len(open_dataset("file:a.tar")) == 1
