"""Arrow files and streams are read by their footer or message by message, however their writer laid them out."""

from __future__ import annotations

import struct
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

import feedmill as fm
from feedmill.errors import DataError, FeedmillError, NotFound
from feedmill.formats.columns import ArrowFile, field
from feedmill.storage import LocalStore

KIND = pa.dictionary(pa.int32(), pa.string())
OPTIONS = {
    "plain": {},
    "zstd": {"compression": "zstd"},
    "lz4": {"compression": "lz4"},
    "V4": {"metadata_version": pa.ipc.MetadataVersion.V4},
    "legacy": {"metadata_version": pa.ipc.MetadataVersion.V4, "use_legacy_format": True},
    "deltas": {"emit_dictionary_deltas": True},
    "unified": {"unify_dictionaries": True},
}


def batches() -> list[pa.RecordBatch]:
    """Batches with dictionaries at the top, in lists, structs and maps, some of them without rows."""
    out = []
    for first, words in ((0, ["a", "b"]), (2, []), (2, ["a", "b", "c"]), (5, ["a", "b", "c", "d"]), (9, [])):
        plain = pa.table(
            {
                "n": pa.array(range(first, first + len(words)), pa.int64()),
                "word": pa.array(words, pa.string()),
                "tags": pa.array([[word, "z"] for word in words], pa.list_(pa.string())),
                "deep": pa.array([{"kind": word} for word in words], pa.struct([("kind", pa.string())])),
                "score": pa.array([[0.5] * n for n, _ in enumerate(words)], pa.list_(pa.float32())),
            }
        )
        kinds = {"word": KIND, "tags": pa.list_(KIND), "deep": pa.struct([("kind", KIND)])}
        schema = pa.schema([(name, kinds.get(name, plain.schema.field(name).type)) for name in plain.schema.names])
        out.append(pa.RecordBatch.from_arrays([c.combine_chunks() for c in plain.cast(schema).columns], schema=schema))
    return out


def write(path: Path, new: Any, options: dict[str, Any], found: list[pa.RecordBatch]) -> Path:
    with new(path, found[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in found:
            writer.write_batch(batch)
    return path


def rows(dataset: Any) -> list[dict[str, Any]]:
    plain = ({name: value.tolist() if hasattr(value, "dtype") else value for name, value in s.items()} for s in dataset)
    return list(plain)


@pytest.mark.parametrize(("form", "name"), list(product([pa.ipc.new_file, pa.ipc.new_stream], OPTIONS)))
def test_batches_are_read_as_pyarrow_does(form: Any, name: str, tmp_path: Path) -> None:
    found, options = batches(), OPTIONS[name]
    if form is pa.ipc.new_stream:
        write(tmp_path / "x.arrow", form, options, found)
    elif name == "deltas":  # files cannot replace a dictionary by the empty one of an empty batch
        write(tmp_path / "x.arrow", form, options, [batch for batch in found if batch.num_rows])
    else:
        unified = pa.Table.from_batches(found).unify_dictionaries().to_batches()
        write(tmp_path / "x.arrow", form, options, [unified[0].slice(0, 0), *unified])
    expected = [row for batch in found for row in batch.to_pylist()]
    dataset = fm.open(tmp_path / "x.arrow")
    assert rows(dataset) == expected and len(dataset) == 9
    assert rows(dataset.read([8, 0, 5, 2])) == [expected[n] for n in (8, 0, 5, 2)]
    assert dataset.to_arrow().to_pylist() == expected and not dataset.verify()
    source, data = dataset.locate(5), (tmp_path / "x.arrow").read_bytes()
    message = pa.ipc.read_message(pa.py_buffer(data[source.offset : source.offset + source.length]))
    assert message.type == "record batch"


@pytest.mark.parametrize("form", [pa.ipc.new_file, pa.ipc.new_stream])
def test_compressed_files_of_metadata_version_4_are_refused(form: Any, tmp_path: Path) -> None:
    """pyarrow writes them, and reads other values: findings/pyarrow_metadata_v4_compression.sh."""
    path = write(tmp_path / "x.arrow", form, {**OPTIONS["V4"], **OPTIONS["zstd"]}, [pa.record_batch({"n": range(5)})])
    with pytest.raises(DataError, match=r"metadata version 4, .* Write it again with metadata version 5\."):
        fm.open(path)


def test_opening_reads_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pa.record_batch({"x": np.arange(100_000), "t": ["some text"] * 100_000})
    for form, name in ((pa.ipc.new_file, "f"), (pa.ipc.new_stream, "s")):
        write(tmp_path / f"{name}.arrow", form, {"compression": "zstd"}, [data] * 3)
        write(tmp_path / f"{name}.feather", form, {}, [data] * 3)
    before = pa.total_allocated_bytes()
    packed = [ArrowFile(LocalStore(tmp_path), f"{name}.arrow") for name in "fs"]
    plain = [ArrowFile(LocalStore(tmp_path), f"{name}.feather") for name in "fs"]
    assert pa.total_allocated_bytes() - before < 100_000 and [len(file) for file in packed + plain] == [300_000] * 4
    for file in plain:
        batch, size = file.read(1)
        assert size < 10_000 and pa.total_allocated_bytes() - before < 100_000 and batch.equals(data)
    for file in packed:
        batch, size = file.read(2)
        assert size == batch.nbytes and batch.equals(data)


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    found = {}
    for form, words in product((pa.ipc.new_file, pa.ipc.new_stream), (["a"], ["a", "b"], ["a", "b", "ccc"])):
        batch = pa.record_batch({"t": pa.array(words).dictionary_encode()})
        write(tmp_path / "x.arrow", form, {}, [batch])
        found[form, len(words)] = ArrowFile(LocalStore(tmp_path), "x.arrow").digest
    assert len(set(found.values())) == 6


def test_folders_lists_and_patterns(tmp_path: Path) -> None:
    parts = batches()
    write(tmp_path / "0.arrows", pa.ipc.new_stream, {}, parts[:1])
    write(tmp_path / "1.arrow", pa.ipc.new_file, {}, parts[2:3])
    pyarrow.feather.write_feather(pa.Table.from_batches(parts[3:4]), tmp_path / "2.feather")
    expected = [row for batch in parts for row in batch.to_pylist()]
    files = [tmp_path / "0.arrows", tmp_path / "1.arrow", tmp_path / "2.feather"]
    for dataset in (fm.open(tmp_path), fm.open(files), fm.open(f"{tmp_path}/*.[af]*")):
        assert rows(dataset) == expected and dataset.describe()["format"] == "arrow"
    assert [len(fm.open(file)) for file in files] == [2, 3, 4]
    assert not fm.check(tmp_path, progress=False).findings
    assert fm.convert(tmp_path, tmp_path.parent / "out", to="jsonl", progress=False).samples == 9


def test_arrow_files_beside_parquet_are_noted(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b"]})
    pq.write_table(table, tmp_path / "0.parquet")
    pyarrow.feather.write_feather(table, tmp_path / "1.feather")
    dataset = fm.open(tmp_path)
    assert len(dataset) == 2
    assert list(dataset.remarks) == ["1 file of Arrow (1.feather) beside the Parquet files: not read"]
    with pytest.raises(FeedmillError, match=r"1 file of Arrow \(1\.feather\)"):
        fm.convert(tmp_path, tmp_path.parent / "out", to="jsonl", progress=False)


def test_a_folder_of_saved_datasets_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write(tmp_path / "a/data-00000-of-00001.arrow", pa.ipc.new_stream, {}, batches())
    (tmp_path / "a/state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    (tmp_path / "a/dataset_info.json").write_text("{}")
    assert len(fm.open(tmp_path / "a")) == 9
    with pytest.raises(NotFound, match=r"Open the folder itself, e\.g\. .*/a/"):
        fm.open(tmp_path)


def test_documents_are_read_from_all_layouts(tmp_path: Path) -> None:
    table = pa.table({"id": ["x", "y"], "text": ["one text", "two texts"]})
    with pa.ipc.new_stream(tmp_path / "0.arrows", table.schema) as writer:
        writer.write_table(table)
    pyarrow.feather.write_feather(table, tmp_path / "1.feather")
    assert fm.documents.stat([tmp_path], progress=False).stats.rows == 4
    assert fm.import_data(tmp_path, tmp_path.parent / "imported", workers=1, progress=False).samples == 4


def test_bytes_after_a_stream_are_noted(tmp_path: Path) -> None:
    path = write(tmp_path / "x.arrows", pa.ipc.new_stream, {}, batches())
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() * 2)
    assert list(fm.open(path).remarks) == [f"x.arrows: {size:,} bytes after the end of the stream are not read"]


@pytest.mark.parametrize("form", [pa.ipc.new_file, pa.ipc.new_stream])
def test_damage_is_found_in_dictionaries_too(form: Any, tmp_path: Path) -> None:
    column = pa.array(["first", "second", "first"]).dictionary_encode()
    path = write(tmp_path / "x.arrow", form, {}, [pa.record_batch({"t": column})])
    data = path.read_bytes()
    indices = np.array([0, 1, 0], "<i4").tobytes()
    assert data.count(indices) == 1
    path.write_bytes(data.replace(indices, np.array([0, 77_777, 0], "<i4").tobytes()))
    with pytest.raises(DataError, match=r"x\.arrow 'record batch 0' at byte \d+: the file cannot be read"):
        fm.open(path)[0]
    offsets = np.array([0, 5, 11], "<i4").tobytes()
    assert data.count(offsets) == 1
    path.write_bytes(data.replace(offsets, np.array([0, 5, 9_999_999], "<i4").tobytes()))
    with pytest.raises(DataError, match="the file cannot be read"):
        fm.open(path)[1]


def big_endian(stream: bytes) -> bytes:
    """A stream of the int32 column n, [1, 2, 3], as a machine of the other byte order writes it."""
    source = pa.BufferReader(stream)
    old = pa.ipc.read_message(source).metadata.to_pybytes()
    header = field(old, struct.unpack_from("<I", old)[0], 2)
    fields = field(old, header + struct.unpack_from("<I", old, header)[0], 1)
    vector = 48 + fields + struct.unpack_from("<I", old, fields)[0]
    message = struct.pack("<I HHHHHH iHBxI", 16, 12, 12, 4, 6, 8, 0, 12, 4, 1, 12)
    schema = struct.pack("<HHHH iHxxI", 8, 12, 4, 8, 8, 1, vector - 44)
    head = message + schema + old
    rest = stream[source.tell() :]
    little, big = (np.array([1, 2, 3], order).tobytes() for order in ("<i4", ">i4"))
    assert len(message + schema) == 48 and rest.count(little) == 1
    return struct.pack("<Ii", 0xFFFFFFFF, len(head)) + head + rest.replace(little, big)


def test_streams_of_the_other_byte_order(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.arrows", pa.ipc.new_stream, {}, [pa.record_batch({"n": pa.array([1, 2, 3], pa.int32())})]
    )
    path.write_bytes(big_endian(path.read_bytes()))
    assert pa.ipc.open_stream(path.read_bytes()).read_all().to_pydict() == {"n": [1, 2, 3]}
    assert [sample["n"] for sample in fm.open(path)] == [1, 2, 3]
