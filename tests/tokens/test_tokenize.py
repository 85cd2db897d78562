from __future__ import annotations

import gzip
import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.documents import read
from feedmill.errors import ConfigError, DataError, EmptyResult, NotFound, StorageError
from feedmill.formats.tokens.manifest import read_manifest
from feedmill.formats.tokens.pbin import PbinWriter
from feedmill.jobs.work import Work
from feedmill.storage import LocalStore, open_store
from feedmill.tokens import job, outputs
from feedmill.tokens.job import TokenizeReport
from feedmill.tokens.verbs.tokenize import tokenize
from helpers.durations import examples
from helpers.tokenizer_data import EOS, loaded, pbin_documents, tokenizer_file, write_lines

TEXTS = [f"Document {i}: " + "some words, and more. " * (i % 13) + "\n" for i in range(300)]


def run(inputs: Any, out: Path, **options: Any) -> TokenizeReport:
    inputs = inputs if isinstance(inputs, list) else [inputs]
    return tokenize(inputs, out, **{"tokenizer": loaded(), "workers": 1, "eos": EOS, **options})


def wanted(texts: list[str], tokenizer: str = "tok1k") -> list[list[int]]:
    model = loaded(tokenizer, "hf")
    eos = model.require(EOS)
    out = []
    for text in texts:
        ids = model.encode([text]).ids.tolist()
        out.append(ids if ids and ids[-1] == eos else [*ids, eos])
    return out


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=80), min_size=1, max_size=30),
    st.integers(1, 200),
    st.booleans(),
)
def test_documents_come_out_as_the_reference_encodes_them_wherever_units_end(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], unit: int, ascii: bool
) -> None:
    folder = tmp_path_factory.mktemp("any")
    lines = [json.dumps({"n": i, "text": t}, ensure_ascii=ascii).encode() for i, t in enumerate(texts)]
    report = run(write_lines(folder / "a.jsonl", lines), folder / "a", unit_bytes=unit)
    assert pbin_documents(folder / "a.pbin") == wanted(texts)
    assert report.documents == len(texts) and report.tokens == sum(map(len, wanted(texts)))


def test_an_interrupt_between_two_results_leaves_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PbinWriter, "add", interrupted)
    before = set(multiprocessing.active_children())  # of earlier tests
    with pytest.raises(KeyboardInterrupt) as raised:
        run(write_lines(tmp_path / "a.jsonl", TEXTS), tmp_path / "out", workers=2, unit_bytes=500)
    assert raised.tb and not set(multiprocessing.active_children()) - before  # the traceback refers to every generator


def test_the_bytes_do_not_depend_on_workers_or_units(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    results = set()
    for number, (workers, unit) in enumerate([(1, 1 << 24), (1, 500), (2, 700), (3, 4000)]):
        out = tmp_path / str(number) / "out"
        report = run(source, out, workers=workers, unit_bytes=unit, formats=["pbin", "ds", "megatron", "dolma"])
        assert report.documents == len(TEXTS)
        results.add(b"".join(p.read_bytes() for p in sorted(out.parent.iterdir()) if p.suffix != ".json"))
        assert not [p for p in out.parent.iterdir() if p.name.startswith(".")]
    assert len(results) == 1


def test_small_files_are_worked_on_together_and_each_line_is_still_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(12):
        lines: list[Any] = [{"id": f"{number}-{n}", "text": TEXTS[number * 9 + n]} for n in range(number % 5)]
        lines += [b"", {"id": "bad", "text": None}, {"text": f"no id {number}"}]
        data = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
        if number % 4 == 3:
            (folder / f"{number:02d}.jsonl.gz").write_bytes(gzip.compress(data))
        else:
            (folder / f"{number:02d}.jsonl").write_bytes(data if number != 6 else b"")
    (folder / "large.jsonl").write_bytes(b"".join(json.dumps({"text": t}).encode() + b"\n" for t in TEXTS))
    results, counts = [], []
    for number, (unit, most, joined, workers) in enumerate(
        [(1 << 24, 1024, 1 << 18, 1), (1 << 24, 3, 1, 2), (700, 1024, 300, 2)]
    ):
        monkeypatch.setattr(read, "_MOST", most)
        monkeypatch.setattr(job, "_JOINED", joined)
        out = tmp_path / str(number) / "out"
        report = run(folder, out, workers=workers, unit_bytes=unit, formats=["pbin", "dolma"], on_error="skip")
        rows = gzip.decompress((out.parent / "out.csv.gz").read_bytes())
        results.append(((out.parent / "out.pbin").read_bytes(), rows, report.skipped_examples, report.blank))
        counts.append(report.units)
    assert results[0] == results[1] == results[2] and counts[:2] == [1, 4] and counts[2] > 12
    examples = results[0][2]
    assert [(Path(s.file).name[:2], s.line) for s in examples] == [(f"{n:02d}", n % 5 + 2) for n in range(12) if n != 6]
    rows = [row.split(",") for row in results[0][1].decode().splitlines()]
    assert [row[2] for row in rows if row[3].endswith("02.jsonl")] == ["2-0", "2-1", f"{folder}/02.jsonl-5"]
    assert [row[4] for row in rows if row[3].endswith("large.jsonl")] == [str(n) for n in range(1, 301)]
    with pytest.raises(DataError) as error:
        run(folder, tmp_path / "fails")
    assert str(error.value.file).endswith("00.jsonl") and error.value.record == "line 2"
    (folder / "00.jsonl").write_text('{"text": "good"}\n\n{"text": "good"}')
    (folder / "01.jsonl").write_text('{"text": "good"}\n\n{"text": 5}')
    with pytest.raises(DataError) as error:
        run(folder, tmp_path / "fails")
    assert str(error.value.file).endswith("01.jsonl") and error.value.record == "line 3"


def test_kinds_of_lines(tmp_path: Path) -> None:
    lines = (
        b'\xef\xbb\xbf{"text": "with a mark"}\r\n\n  \n{"text": "crlf"}\r\n{"x": NaN, "text": "nan", "text": "last"}\n'
        b'{"text": "\\ud83d\\ude00 pair"}\n{"y": 123456789012345678901234567890, "text": "no newline"}'
    )
    (tmp_path / "a.jsonl").write_bytes(lines)
    report = run(tmp_path / "a.jsonl", tmp_path / "a")
    assert pbin_documents(tmp_path / "a.pbin") == wanted(
        ["with a mark", "crlf", "last", "\U0001f600 pair", "no newline"]
    )
    assert (report.blank, report.skipped) == (2, 0)


BAD = [  # a line, and what is said of it
    (b'{"text": ""}', "the text is empty"),
    (b'{"other": "a"}', "there is no .text"),
    (b'{"text": null}', "the text is null"),
    (b'{"text": 3}', "text is a number, not a text"),
    (b'{"text": ["a"]}', "text is a list, not a text"),
    (b'{"text": "a"', "it is not valid JSON"),
    (b'{"text": "a"}{"text": "b"}', "it is not valid JSON"),
    (b"version https://git-lfs.github.com/spec/v1", "column 1 (char 0)) (it is a pointer of Git LFS)"),
    (b'["a"]', "is a list, so it has no field 'text'"),
    (b'{"text": "a\xff"}', "it is not valid UTF-8"),
    (b'{"text": "a\\ud800"}', "lone surrogate"),
    (b"[" * 100_000 + b"]" * 100_000, "it is not valid JSON"),
]


@pytest.mark.parametrize(
    ("line", "reason", "workers"),
    [*((*bad, 1) for bad in BAD), pytest.param(*BAD[0], 2, marks=pytest.mark.slow), (*BAD[8], 2)],
)
def test_a_bad_document_ends_the_job_or_is_left_out_and_listed(
    line: bytes, reason: str, workers: int, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "a.jsonl", [*TEXTS[:20], line, *TEXTS[20:30], line])
    size = max(300, len(line) // 3)  # of a unit: a long line has a few of them
    with pytest.raises(DataError, match="--on-error skip") as error:
        run(source, tmp_path / "a", unit_bytes=size, workers=workers)
    assert error.value.record == "line 21" and reason in error.value.what and error.value.file == str(source)
    assert not (tmp_path / "a.pbin").exists()

    report = run(source, tmp_path / "a", unit_bytes=size, on_error="skip", workers=workers)
    assert pbin_documents(tmp_path / "a.pbin") == wanted(TEXTS[:30])
    assert [(s.line, s.file) for s in report.skipped_examples] == [(21, str(source)), (32, str(source))]
    assert report.skipped == 2 and reason in report.skipped_examples[0].reason
    manifest = read_manifest(open_store(tmp_path), "a.pbin")
    assert manifest is not None and manifest.skipped == 2 and manifest.skipped_examples == report.skipped_examples


def test_only_a_hundred_are_listed_and_all_are_counted(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [b'{"text": ""}'] * 150 + ["good"])
    report = run(source, tmp_path / "a", on_error="skip", unit_bytes=100)
    assert report.skipped == 150 and len(report.skipped_examples) == 100 and report.documents == 1


def test_ids_that_do_not_fit_are_documents_that_do_not_fit(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", ["!!", "Some English words", "!"])
    with pytest.raises(DataError, match=r"does not fit tokens of 1 byte \(at most 255\). Pass --token-size 2") as error:
        run(source, tmp_path / "a", token_size=1, tokenizer=loaded("tok1k"))
    assert error.value.record == "line 2"
    assert run(source, tmp_path / "a", token_size=1, on_error="skip").skipped == 1


def test_unknown_tokens_are_named_with_those_that_look_like_them(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", ["a"])
    with pytest.raises(ConfigError, match=r"no EOS '<\|endofttext\|>'. Did you mean '<\|endoftext\|>'"):
        run(source, tmp_path / "a", eos="<|endofttext|>")
    with pytest.raises(ConfigError, match="BOS 'zzz'"):
        run(source, tmp_path / "a", bos="zzz")


def test_bos_and_eos_where_missing_and_always(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", ["x", f"x{EOS}", f"<|im_start|>x{EOS}"])
    model = loaded()
    x, eos, bos = model.encode(["x"]).ids[0], model.require(EOS), model.require("<|im_start|>")
    run(source, tmp_path / "a", bos="<|im_start|>")
    assert pbin_documents(tmp_path / "a.pbin") == [[bos, x, eos]] * 3
    run(source, tmp_path / "b", bos="<|im_start|>", rule="always")
    assert pbin_documents(tmp_path / "b.pbin") == [[bos, x, eos], [bos, x, eos, eos], [bos, bos, x, eos, eos]]
    run(source, tmp_path / "c", eos=None)
    assert pbin_documents(tmp_path / "c.pbin")[0] == [x]
    run(source, tmp_path / "d", specials_as_text=True)
    assert pbin_documents(tmp_path / "d.pbin")[1].count(eos) == 1


def test_paths_and_programs(tmp_path: Path) -> None:
    lines = [json.dumps({"a": {"b c": [{"t": f"text {i}"}, 3]}}).encode() for i in range(5)]
    source = write_lines(tmp_path / "a.jsonl", lines)
    for number, text in enumerate(['.a["b c"][0].t', '.a["b c"][0] | .t']):
        run(source, tmp_path / str(number), text=text)
        assert pbin_documents(tmp_path / f"{number}.pbin") == wanted([f"text {i}" for i in range(5)])
    with pytest.raises(DataError, match=r"there is no \.a\.zz"):
        run(source, tmp_path / "x", text=".a.zz")
    with pytest.raises(ConfigError, match="jq expression"):
        run(source, tmp_path / "x", text=".a |")
    assert run(source, tmp_path / "x", text="empty", on_error="skip", allow_empty=True).skipped == 5


def test_what_is_there_is_not_overwritten_and_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    first = run(source, tmp_path / "a.pbin")
    before = (tmp_path / "a.pbin").stat().st_mtime_ns
    again = run(source, tmp_path / "a")
    assert again.complete and (again.documents, again.tokens) == (first.documents, first.tokens)
    assert (tmp_path / "a.pbin").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="--overwrite"):
        run(source, tmp_path / "a", eos=None)
    write_lines(source, TEXTS[:-1])
    with pytest.raises(ConfigError, match="--overwrite"):
        run(source, tmp_path / "a")
    assert run(source, tmp_path / "a", overwrite=True).documents == len(TEXTS) - 1


def test_a_run_that_stops_goes_on_with_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    whole = run(source, tmp_path / "whole", unit_bytes=1000)
    taken = 0

    def stops(*arguments: Any, **named: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken == 5:
            raise KeyboardInterrupt
        return read(*arguments, **named)

    read = outputs.documents_of
    with monkeypatch.context() as patched:
        patched.setattr("feedmill.tokens.verbs.tokenize.documents_of", stops)
        with pytest.raises(KeyboardInterrupt):
            run(source, tmp_path / "a", unit_bytes=1000)
    work = tmp_path / ".a.feedmill-work"
    pieces = sorted(work.glob("*.piece"))
    assert len(pieces) == 5 and not (tmp_path / "a.pbin").exists()
    damaged = bytearray(pieces[1].read_bytes())
    damaged[10] ^= 1
    pieces[1].write_bytes(damaged)
    pieces[2].write_bytes(pieces[2].read_bytes()[:-3])
    report = run(source, tmp_path / "a", unit_bytes=1000)
    assert report.reused == 3 and report.units == whole.units and not work.exists()
    assert (tmp_path / "a.pbin").read_bytes() == (tmp_path / "whole.pbin").read_bytes()


@pytest.mark.parametrize("change", ["input", "option", "tokenizer"])
def test_pieces_of_other_inputs_options_or_tokenizers_are_not_used(change: str, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [*TEXTS[:50], b'{"text": ""}'])
    with pytest.raises(DataError):
        run(source, tmp_path / "a", unit_bytes=500)
    assert len(list((tmp_path / ".a.feedmill-work").glob("*.piece"))) > 3
    write_lines(source, [*TEXTS[:50], "ok"])
    options: dict[str, Any] = {"unit_bytes": 500}
    if change == "option":
        options["eos"] = None
    elif change == "tokenizer":
        options["tokenizer"] = loaded("tok1k_bos")
    report = run(source, tmp_path / "a", **options)
    assert report.reused == 0 and report.documents == 51


def test_one_run_at_a_time(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    with Work(LocalStore(tmp_path), "a"), pytest.raises(StorageError, match="another process is writing here"):
        run(source, tmp_path / "a")


def test_kinds_of_files(tmp_path: Path) -> None:
    from backports import zstd

    data = write_lines(tmp_path / "plain" / "a.jsonl", TEXTS).read_bytes()
    tree = tmp_path / "tree" / "documents" / "deep"
    tree.mkdir(parents=True)
    half = data.index(b"\n", len(data) // 2) + 1
    (tree / "a.jsonl.gz").write_bytes(gzip.compress(data[:1000]) + gzip.compress(data[1000:half]))
    (tree / "b.json.zst").write_bytes(zstd.compress(data[half : half + 500]) + zstd.compress(data[half + 500 :]))
    (tmp_path / "tree" / "attributes").mkdir()
    (tmp_path / "tree" / "attributes" / "a.jsonl").write_text("{}\n")
    run(tmp_path / "plain", tmp_path / "a")
    run(tmp_path / "tree", tmp_path / "b", workers=2)
    assert (tmp_path / "a.pbin").read_bytes() == (tmp_path / "b.pbin").read_bytes()
    run(str(tmp_path / "tree" / "**" / "*.jsonl.gz"), tmp_path / "c")
    assert len(pbin_documents(tmp_path / "c.pbin")) == data[:half].count(b"\n")

    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("b", "a"):
        (texts / f"{name}.txt").write_text(f"\ufefffile {name}\nline two\n")
    run(texts, tmp_path / "d")
    assert pbin_documents(tmp_path / "d.pbin") == wanted(["file a\nline two\n", "file b\nline two\n"])


def test_parquet_and_arrow(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"n": list(range(300)), "text": TEXTS, "deep": [{"t": t} for t in TEXTS]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=40)
    run(tmp_path / "a.parquet", tmp_path / "a", unit_bytes=2000)
    assert pbin_documents(tmp_path / "a.pbin") == wanted(TEXTS)
    run(tmp_path / "a.parquet", tmp_path / "deep", text=".deep.t", workers=2, unit_bytes=2000)
    assert (tmp_path / "a.pbin").read_bytes() == (tmp_path / "deep.pbin").read_bytes()
    saved = tmp_path / "saved"
    saved.mkdir()
    for number, part in enumerate((table.slice(0, 100), table.slice(100))):
        with pa.ipc.new_stream(saved / f"data-{number}.arrow", table.schema) as out:
            out.write_table(part)
    names = [{"filename": f"data-{i}.arrow"} for i in range(2)]
    (saved / "state.json").write_text(json.dumps({"_data_files": names}))
    (saved / "dataset_info.json").write_text("{}")
    run(saved, tmp_path / "b")
    assert (tmp_path / "a.pbin").read_bytes() == (tmp_path / "b.pbin").read_bytes()
    with pytest.raises(ConfigError, match="no column 'nothing'"):
        run(saved, tmp_path / "x", text="nothing")
    pq.write_table(pa.table({"text": ["a", None, ""]}), tmp_path / "bad.parquet")
    report = run(tmp_path / "bad.parquet", tmp_path / "c", on_error="skip")
    assert [s.line for s in report.skipped_examples] == [2, 3]
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="the file is truncated"):
        run(tmp_path / "bad.parquet", tmp_path / "x")


def test_damaged_columns_are_errors_whatever_the_policy(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from helpers import foreign_datasets as sourcedata

    pq.write_table(pa.table({"text": pa.array([b"a", b"\xff"]).view(pa.string())}), tmp_path / "a.parquet")
    path = sourcedata.write_arrow(tmp_path / "a.arrow", sourcedata.table(0, 7))
    path.write_bytes(sourcedata.with_a_wrong_offset(path.read_bytes(), [9, 18]))
    for source in (tmp_path / "a.parquet", path):
        with pytest.raises(DataError, match=r"text in it is not UTF-8|cannot be read"):
            run(source, tmp_path / "b", on_error="skip")


def test_damaged_files_are_errors_whatever_the_policy(tmp_path: Path) -> None:
    from backports import zstd

    data = write_lines(tmp_path / "a.jsonl", TEXTS * 20).read_bytes()
    for suffix, packed in (("gz", gzip.compress(data)), ("zst", zstd.compress(data))):
        path = tmp_path / f"b.jsonl.{suffix}"
        for cut in (packed[:-20], packed[: len(packed) // 2], b"no" + packed):
            path.write_bytes(cut)
            with pytest.raises(DataError, match="corrupt or truncated"):
                run(path, tmp_path / "b", on_error="skip")


def test_a_very_large_document(tmp_path: Path) -> None:
    big = "word " * 2_000_000 + "end"
    source = write_lines(tmp_path / "a.jsonl", ["first", big, "last"])
    report = run(source, tmp_path / "a", unit_bytes=1 << 20)
    found = pbin_documents(tmp_path / "a.pbin")
    assert report.documents == 3 and found[0] == wanted(["first"])[0] and found[2] == wanted(["last"])[0]
    assert loaded().decode(found[1][:-1]) == big


def test_loss_masks(tmp_path: Path) -> None:
    documents = [
        {"text": "keep this, drop that part, keep", "no_loss_ranges": [[11, 25]]},
        {"text": "all of it counts"},
        {"text": "metadata too", "metadata": {"no_loss_ranges": [[8, 12]]}},
        {"text": "end is masked and stays", "no_loss_ranges": [[7, 23]]},
    ]
    source = write_lines(tmp_path / "a.jsonl", documents)
    run(source, tmp_path / "a", formats=["ds"], loss=True)
    tokens = np.fromfile(tmp_path / "a.ds", "<u2")
    loss = np.fromfile(tmp_path / "a.ds.loss", np.uint8)
    assert tokens.tolist() == [i for ids in wanted([d["text"] for d in documents]) for i in ids]
    assert loaded().decode(tokens[loss == 0]) == " drop that part too masked and stays"
    bad = write_lines(tmp_path / "bad.jsonl", [{"text": "x", "no_loss_ranges": [[3]]}])
    with pytest.raises(DataError, match="no_loss_ranges is not a list of character ranges"):
        run(bad, tmp_path / "b", formats=["ds"], loss=True)
    with pytest.raises(ConfigError, match="'vla-text' cannot store a loss mask"):
        run(source, tmp_path / "b", formats=["vla-text"], seq_len=4, loss=True)
    run(source, tmp_path / "c", formats=["pbin", "megatron", "dolma"], loss=True)
    for mask in ("c.pbin.feedmill.loss", "c.bin.feedmill.loss", "c.npy.feedmill.loss"):
        assert (tmp_path / mask).read_bytes() == (tmp_path / "a.ds.loss").read_bytes()
    run(source, tmp_path / "n/c_{part}", formats=["pbin"], loss=True, max_file_size="150B")
    parts = sorted((tmp_path / "n").glob("*.pbin.feedmill.loss"))
    assert len(parts) > 1 and b"".join(p.read_bytes() for p in parts) == (tmp_path / "a.ds.loss").read_bytes()


def test_dolma_rows_say_where_documents_come_from(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"text": "x", "id": "one"}, b"", {"text": "y"}])
    run(source, tmp_path / "a", formats=["dolma"])
    rows = gzip.decompress((tmp_path / "a.csv.gz").read_bytes()).decode().splitlines()
    assert rows == [f"0,2,one,{source},1", f"2,4,{source}-3,{source},3"]


def test_inputs_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        run(tmp_path / "none.jsonl", tmp_path / "a")
    with pytest.raises(NotFound, match="no files match"):
        run(str(tmp_path / "*.jsonl"), tmp_path / "a")
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match="unsupported file type for documents"):
        run(tmp_path / "x.bin", tmp_path / "a")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="no documents in this folder"):
        run(tmp_path / "empty", tmp_path / "a")
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "a.jsonl").touch()
    (tmp_path / "mixed" / "a.parquet").touch()
    with pytest.raises(ConfigError, match="several kinds"):
        run(tmp_path / "mixed", tmp_path / "a")


def test_no_documents_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(EmptyResult, match="the inputs hold no documents"):
        run(tmp_path / "a.jsonl", tmp_path / "a", formats=["pbin", "ds", "megatron", "dolma"])
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    formats = ["pbin", "ds", "megatron", "dolma"]
    report = run(tmp_path / "a.jsonl", tmp_path / "a", formats=formats, allow_empty=True)
    assert report.documents == 0 and pbin_documents(tmp_path / "a.pbin") == []


def test_formats_and_sizes(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", ["x"])
    with pytest.raises(ConfigError, match="the output path has no file name"):
        run(source, f"{tmp_path}/a/")
    with pytest.raises(ConfigError, match="unknown token format 'npz'"):
        run(source, tmp_path / "a", formats=["npz"])
    with pytest.raises(ConfigError, match="--seq-len"):
        run(source, tmp_path / "a", formats=["vla-text"])
    with pytest.raises(ConfigError, match="--seq-len"):
        run(source, tmp_path / "a", formats=["pbin"], seq_len=5)
    with pytest.raises(ConfigError, match="cannot store tokens of 3 bytes"):
        run(source, tmp_path / "a", token_size=3)
    with pytest.raises(ConfigError, match="passed twice"):
        run(source, tmp_path / "a", formats=["ds", "ds"])
    places: Any = {"pbin": tmp_path / "p" / "x.pbin", "megatron": tmp_path / "m" / "y"}
    report = run(source, places, tokenizer=loaded("tok66k"))
    assert report.token_bytes == {"pbin": 4, "megatron": 4} and (tmp_path / "m" / "y.bin").stat().st_size == 8
    assert report.tokenizer == str(tokenizer_file("tok66k"))
