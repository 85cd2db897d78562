"""Each option of Dolma's commands that is mapped changes what is written, or how; the rest is named."""

from __future__ import annotations

import gzip
import inspect
import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from feedmill.compat.dolma.cli import COMMANDS
from feedmill.compat.dolma.core.runtime import create_and_run_tagger
from feedmill.compat.dolma.settings import FUNCTIONS, TABLES
from feedmill.compat.dolma.tokenizer import tokenize_in_parallel
from feedmill.compat.dolma.warc import create_and_run_warc_pipeline
from feedmill.curation import registry
from feedmill.errors import FeedmillError
from feedmill.formats.settings import Fate
from helpers.tokenizer_data import tokenizer_file
from helpers.web_archives import archive, pages

MODULE = """
from dolma import BaseTagger, add_tagger
from dolma.core.data_types import DocResult, Span

@add_tagger("my_words")
class Words(BaseTagger):
    def predict(self, doc):
        return DocResult(doc=doc, spans=[Span(0, len(doc.text), "words", 1.0)])
"""
TEXTS = [
    "The same line.\nA first line of some words here.\nThe same line.\n",
    "Short.\n\nThe same line.\nOne two three four five six seven.\nOne two three four five six eight.\n",
    "A line with <|endoftext|> in it:\n    one\n    two\n",
    "  \n\nThe same line.\n",
    "x y z",
    "The same line.\nA first line of some words here.\nThe same line.\n",
]
FILES = {name: [f"{text}{name}\n" * (n % 2) + text for n, text in enumerate(TEXTS)] for name in "abc"}
TOK = str(tokenizer_file("tok1k"))
STREAM = {
    "name": "s",
    "documents": ["c/documents/*"],
    "attributes": ["x"],
    "output": {"path": "mixed", "max_size_in_bytes": 1 << 20},
    "filter": {"exclude": ["$.attributes[?(@.a__b__score[0][2] > 0.8)]"]},
}
SPANS = {"span": "$.attributes.a__b__score", "min_score": 0.2, "max_score": 0.7, "replacement": "*"}
BASE: dict[str, dict[str, Any]] = {
    "tag": {"documents": ["c/documents/*"], "taggers": ["char_length_v1"], "experiment": "e"},
    "list": {},
    "tokens": {
        "documents": ["c/documents/*"],
        "destination": "t",
        "tokenizer.name_or_path": TOK,
        "tokenizer.eos_token_id": 0,
        "dtype": "uint16",
    },
    "reshard": {
        "source_prefixes": [{"prefix": "tokens/one", "sample_rate": 1.5}, {"prefix": "tokens/two", "sample_rate": 1}],
        "destination_prefix": "r",
        "max_num_files": 2,
    },
    "stat": {"attributes": ["c/attributes/x/*"], "report": "out"},
    "dedupe": {
        "documents": ["c/documents/*"],
        "dedupe.name": "d",
        "dedupe.paragraphs.attribute_name": "dup",
        "bloom_filter.file": "f.bin",
        "bloom_filter.read_only": False,
        "bloom_filter.estimated_doc_count": 1000,
        "bloom_filter.desired_false_positive_rate": 1e-5,
    },
    "mix": {"streams": [STREAM]},
    "warc": {"documents": ["w/*"], "destination": ["out"], "source_name": "crawl", "post.taggers": ["char_length_v1"]},
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_inputs() -> None:
    for folder in ("c", "other"):
        for name, texts in FILES.items():
            if folder == "other" and name == "b":
                continue
            for kind in ("documents", "attributes/x"):
                Path(folder, kind).mkdir(parents=True, exist_ok=True)
            rows = [
                {"id": f"{name}{n}", "text": text, "source": "s", "more": {"text": text[::-1], "number": n}}
                for n, text in enumerate(texts)
            ]
            if folder == "other":
                rows = rows[1:]
            marks = [
                {
                    "id": row["id"],
                    "attributes": {"a__b__score": [[0, 1, n / 10], [2, 3, n / 7]], "a__b__two": [[0, 1, 1]]},
                }
                for n, row in enumerate(rows)
            ]
            for kind, lines in (("documents", rows), ("attributes/x", marks)):
                Path(folder, kind, f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Path("mine.py").write_text(MODULE)


CALLS: dict[str, Any] = {
    "create_and_run_tagger": create_and_run_tagger,
    "create_and_run_warc_pipeline": create_and_run_warc_pipeline,
    "tokenize_in_parallel": tokenize_in_parallel,
}


def run(command: str, change: dict[str, Any]) -> None:
    """Run a command with a configuration in which options of the base are other; None removes one.

    The name of a function instead of a command calls it with the same options.
    """
    if command in CALLS:
        _, command_of_it, options = FUNCTIONS[command]
        values = {**BASE[command_of_it], **change}
        CALLS[command](**{name: values[option] for name, option in options.items() if option in values})
        return
    flat = {name: value for name, value in {**BASE[command], **change}.items() if value is not None}
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split(".")
        at = tree
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = value
    known = COMMANDS[command]
    getattr(import_module(known.module), known.function)([], tree, False)


def written(command: str, change: dict[str, Any], folder: str, again: bool = False) -> Any:
    """All files that a command wrote, by path and without compression; or the error."""
    Path(folder).mkdir()
    home = Path.cwd()
    os.chdir(folder)
    try:
        write_inputs()
        if command == "reshard":
            for name, pattern in (("one", "c/documents/*"), ("two", "other/documents/*")):
                run("tokens", {"documents": [pattern], "destination": f"tokens/{name}", "max_size": 150})
        if command in ("warc", "create_and_run_warc_pipeline"):
            for name in "ab":
                archive(Path(f"w/{name}.warc.gz"), pages(3, name))
        before = set(Path().rglob("*"))
        for _ in range(1 + again):
            run(command, change)
    except (FeedmillError, TypeError) as error:
        return str(error).replace(str(Path.cwd()), "")
    finally:
        os.chdir(home)
        registry.remove("my_words")
        registry._loaded.clear()
    found = {}
    for path in set(Path(folder).rglob("*")) - {Path(folder, path) for path in before}:
        name = str(path.relative_to(folder))
        if (
            path.is_file()
            and "feedmill" not in name
            and "__pycache__" not in name
            and not path.name.startswith((".", "_"))
        ):
            data = path.read_bytes()
            data = gzip.decompress(data) if name.endswith(".gz") else data
            found[name] = data if "warc" not in command else without_times(data)
    return found


_known: dict[str, Any] = {}


def known(command: str, change: dict[str, Any]) -> Any:
    """What `written` gives; run once for all tests that compare with it."""
    key = repr((command, change))
    if key not in _known:
        _known[key] = written(command, change, f"known-{len(_known)}")
    return _known[key]


def without_times(data: bytes) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in data.splitlines()]
    return [{key: value for key, value in row.items() if key != "added"} for row in rows]


def stream(**change: Any) -> dict[str, Any]:
    return {"streams": [{**STREAM, **change}]}


def spans(**change: Any) -> dict[str, Any]:
    return stream(span_replacement=[{key: value for key, value in {**SPANS, **change}.items() if value is not None}])


def output(**change: Any) -> dict[str, Any]:
    return stream(output={"path": "mixed", "max_size_in_bytes": 1 << 20, **change})


def ngrams(**change: Any) -> dict[str, Any]:
    given = {"ngram_length": 2, "stride": 1, "overlap_threshold": 0.5, **change}
    return {f"dedupe.paragraphs.by_ngram.{key}": value for key, value in given.items()}


OF_DOCUMENTS = {
    "dedupe.paragraphs.attribute_name": None,
    "dedupe.documents.attribute_name": "whole",
    "dedupe.documents.key": "$.text",
}
READ_ONLY = {"bloom_filter.read_only": True}
Change = dict[str, Any]
CHANGED: dict[str, dict[str, tuple[Change, Change]]] = {
    "tag": {
        "documents": ({}, {"documents": ["other/documents/*"]}),
        "destination": ({}, {"destination": ["out"]}),
        "tagger_modules": ({"taggers": ["my_words"]}, {"taggers": ["my_words"], "tagger_modules": ["mine.py"]}),
        "taggers": ({}, {"taggers": ["whitespace_tokenizer_with_paragraphs_v1"]}),
        "experiment": ({}, {"experiment": "f"}),
        "dryrun": ({}, {"dryrun": True}),
    },
    "tokens": {
        "documents": ({}, {"documents": ["other/documents/*"]}),
        "destination": ({}, {"destination": "u"}),
        "tokenizer.name_or_path": ({}, {"tokenizer.name_or_path": str(tokenizer_file("tok256"))}),
        "tokenizer.bos_token_id": ({}, {"tokenizer.bos_token_id": 1}),
        "tokenizer.eos_token_id": ({}, {"tokenizer.eos_token_id": 1}),
        "tokenizer.fast": ({}, {"tokenizer.fast": False}),
        "tokenizer.encode_special_tokens": ({}, {"tokenizer.encode_special_tokens": True}),
        "tokenizer_name_or_path": (
            {"tokenizer.name_or_path": None},
            {"tokenizer.name_or_path": None, "tokenizer_name_or_path": TOK},
        ),
        "processes": ({}, {"processes": 3}),
        "files_per_process": ({}, {"files_per_process": 1}),
        "batch_size": ({}, {"batch_size": 1}),
        "ring_size": ({}, {"ring_size": 1}),
        "fields.text_field_name": ({}, {"fields.text_field_name": "more.text"}),
        "fields.text_field_type": ({}, {"fields.text_field_type": "int"}),
        "fields.id_field_name": ({}, {"fields.id_field_name": "more.number", "fields.id_field_type": "int"}),
        "fields.id_field_type": ({}, {"fields.id_field_type": "int"}),
        "sample_ring_prop": (
            {"batch_size": 2, "ring_size": 2},
            {"batch_size": 2, "ring_size": 2, "sample_ring_prop": True},
        ),
        "max_size": ({}, {"max_size": 100}),
        "dtype": ({}, {"dtype": "uint32"}),
        "seed": ({}, {"seed": 1}),
        "dryrun": ({}, {"dryrun": True}),
    },
    "reshard": {
        "source_prefixes.prefix": ({}, {"source_prefixes": [{"prefix": "tokens/two", "sample_rate": 1.5}]}),
        "source_prefixes.sample_rate": ({}, {"source_prefixes": [{"prefix": "tokens/one", "sample_rate": 2}]}),
        "destination_prefix": ({}, {"destination_prefix": "s"}),
        "max_num_files": ({}, {"max_num_files": 1}),
        "max_size_bytes": (
            {"max_num_files": None, "max_size_bytes": 1 << 20},
            {"max_num_files": None, "max_size_bytes": 600},
        ),
        "random_seed": ({}, {"random_seed": 7}),
    },
    "stat": {
        "attributes": ({}, {"attributes": ["c/attributes/x/a*"]}),
        "report": ({}, {"report": "there"}),
        "bins": ({}, {"bins": 3}),
        "regex": ({}, {"regex": "two"}),
    },
    "dedupe": {
        "documents": ({}, {"documents": ["other/documents/*"]}),
        "dedupe.name": ({}, {"dedupe.name": "n"}),
        "dedupe.documents.attribute_name": (OF_DOCUMENTS, {**OF_DOCUMENTS, "dedupe.documents.attribute_name": "w"}),
        "dedupe.documents.key": (OF_DOCUMENTS, {**OF_DOCUMENTS, "dedupe.documents.key": "$.source"}),
        "dedupe.paragraphs.attribute_name": ({}, {"dedupe.paragraphs.attribute_name": "p"}),
        "dedupe.paragraphs.paragraph_separator": ({}, {"dedupe.paragraphs.paragraph_separator": "."}),
        "dedupe.paragraphs.by_ngram.ngram_length": (ngrams(), ngrams(ngram_length=5)),
        "dedupe.paragraphs.by_ngram.stride": (ngrams(ngram_length=3), ngrams(ngram_length=3, stride=4)),
        "dedupe.paragraphs.by_ngram.overlap_threshold": (ngrams(), ngrams(overlap_threshold=0.9)),
        "dedupe.paragraphs.by_ngram.skip_short_paragraphs": (
            ngrams(ngram_length=3),
            ngrams(ngram_length=3, skip_short_paragraphs=True),
        ),
        "dedupe.skip_empty": ({}, {"dedupe.skip_empty": True}),
        "dedupe.min_length": ({}, {"dedupe.min_length": 20}),
        "dedupe.min_words": ({}, {"dedupe.min_words": 4}),
        "dedupe.num_partitions": ({}, {"dedupe.num_partitions": 3}),
        "dedupe.partition_index": (
            {"dedupe.num_partitions": 3},
            {"dedupe.num_partitions": 3, "dedupe.partition_index": 1},
        ),
        "dedupe.file_partition": (
            {"dedupe.num_partitions": 3},
            {"dedupe.num_partitions": 3, "dedupe.file_partition": True},
        ),
        "dedupe.document_dir": ({}, {"dedupe.document_dir": "c"}),
        "bloom_filter.file": ({}, {"bloom_filter.file": "g.bin"}),
        "bloom_filter.read_only": ({}, READ_ONLY),
        "bloom_filter.size_in_bytes": ({}, {"bloom_filter.size_in_bytes": 1 << 16}),
        "bloom_filter.estimated_doc_count": ({}, {"bloom_filter.estimated_doc_count": 500_000}),
        "bloom_filter.desired_false_positive_rate": (
            {"bloom_filter.estimated_doc_count": 500_000},
            {"bloom_filter.estimated_doc_count": 500_000, "bloom_filter.desired_false_positive_rate": 0.5},
        ),
        "compression.input": ({}, {"compression.input": "gz"}),
        "compression.output": ({}, {"compression.output": "gz"}),
        "dryrun": ({}, {"dryrun": True}),
    },
    "mix": {
        "streams.name": ({}, stream(name="t")),
        "streams.documents": ({}, stream(documents=["c/documents/a*"])),
        "streams.attributes": ({}, stream(attributes=["y"])),
        "streams.output.path": ({}, output(path="there")),
        "streams.output.max_size_in_bytes": ({}, output(max_size_in_bytes=300)),
        "streams.output.discard_fields": ({}, output(discard_fields=["source"])),
        "streams.output.min_text_length": ({}, output(min_text_length=20)),
        "streams.filter.include": ({}, stream(filter={"include": ["$.attributes[?(@.a__b__score[0][2] > 0.3)]"]})),
        "streams.filter.exclude": ({}, stream(filter={"exclude": ["$.attributes[?(@.a__b__score[0][2] > 0.3)]"]})),
        "streams.filter.syntax": (
            stream(filter={"include": [".source == 5"]}),
            stream(filter={"include": [".source == 5"], "syntax": "jq"}),
        ),
        "streams.span_replacement.span": (spans(), spans(span="$.attributes.a__b__two", max_score=2)),
        "streams.span_replacement.min_score": (spans(), spans(min_score=0.4)),
        "streams.span_replacement.max_score": (spans(), spans(max_score=0.4)),
        "streams.span_replacement.replacement": (spans(), spans(replacement="**")),
        "streams.span_replacement.syntax": (spans(), spans(syntax="jq", span=".attributes.a__b__two")),
        "streams.compression.input": ({}, stream(compression={"input": "gz"})),
        "streams.compression.output": ({}, stream(compression={"output": "zst"})),
        "shuffle": ({}, {"shuffle": False}),
        "dryrun": ({}, {"dryrun": True}),
    },
    "warc": {
        "documents": ({}, {"documents": ["w/a*"]}),
        "destination": ({}, {"destination": ["there"]}),
        "source_name": ({}, {"source_name": "other"}),
        "linearizer": ({}, {"linearizer": "none"}),
        "pre.taggers": ({}, {"pre.taggers": ["char_length_v1"]}),
        "pre.skip": ({"pre.taggers": ["cc_re"]}, {"pre.taggers": ["cc_re"], "pre.skip": True}),
        "post.taggers": ({}, {"post.taggers": ["cc_re"]}),
        "post.skip": ({"post.taggers": ["cc_re"]}, {"post.taggers": ["cc_re"], "post.skip": True}),
        "store_html_in_metadata": ({}, {"store_html_in_metadata": True}),
        "dryrun": ({}, {"dryrun": True}),
    },
}
SAME: dict[str, dict[str, Any]] = {
    "tokens": {"tokenizer.segment_before_tokenization": True},
    "tag": {"processes": 2, "debug": True, "ignore_existing": True},
    "stat": {"processes": 2, "debug": True},
    "reshard": {"max_workers": 2},
    "dedupe": {"processes": 2},
    "mix": {"processes": 2},
    "warc": {"processes": 2, "debug": True, "ignore_existing": True},
}
"""Options that say how a command works: the files are the same (paragraphs give other ids to few tokenizers alone)."""
SHOWN = {"list": ("tagger_modules",), "stat": ("total",)}


def needs(command: str) -> None:
    if command == "warc":
        for package in ("fastwarc", "resiliparse", "w3lib", "url_normalize", "dateparser"):
            pytest.importorskip(package)


@pytest.mark.parametrize(("command", "name"), [(command, name) for command in CHANGED for name in CHANGED[command]])
def test_an_option_changes_the_files(command: str, name: str) -> None:
    needs(command)
    before, after = CHANGED[command][name]
    assert known(command, before) != known(command, after)


@pytest.mark.parametrize(("command", "name"), [(command, name) for command in SAME for name in SAME[command]])
def test_an_option_of_the_work_leaves_the_files(command: str, name: str) -> None:
    needs(command)
    again = name == "ignore_existing"
    one, two = known(command, {}), written(command, {name: SAME[command][name]}, "two", again)
    assert one == two
    assert one


def test_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    written("list", {"tagger_modules": ["mine.py"]}, "one")
    assert "my_words" in capsys.readouterr().out
    written("list", {}, "two")
    assert "my_words" not in capsys.readouterr().out
    written("stat", {"total": True}, "three")
    assert "sum, total" in capsys.readouterr().out


PARAMETERS = [(function, name) for function in FUNCTIONS for name in FUNCTIONS[function][2]]


@pytest.mark.parametrize(("function", "name"), PARAMETERS)
def test_a_parameter_is_the_option_of_the_command(function: str, name: str) -> None:
    """The function writes what the command writes, with the option as the tests above change it."""
    _, command, options = FUNCTIONS[function]
    needs(command)
    option = options[name]
    _, after = CHANGED[command].get(option, ({}, {option: SAME[command].get(option)}))
    if name in ("dtype", "tokenizer_name_or_path"):  # the function takes no other type than that of the ids
        assert " is not that of the tokenizer's ids" in written(function, after, "one")
        return
    one, two = written(function, after, "one"), known(command, after)
    assert one == two
    assert one


def test_a_tagger_that_fails_is_skipped_on_demand() -> None:
    given = {"documents": ["c/documents/*"], "taggers": ["my_words"], "taggers_modules": ["bad.py"]}
    write_inputs()
    Path("bad.py").write_text(MODULE.replace("len(doc.text)", "1 // (len(doc.text) - 5)"))
    try:
        assert len(create_and_run_tagger(**given, experiment="e", skip_on_failure=True).failed) == 3
        with pytest.raises(FeedmillError):
            create_and_run_tagger(**given, experiment="f")
    finally:
        registry.remove("my_words")
        registry._loaded.clear()


def test_every_mapped_option_has_its_test() -> None:
    for table in TABLES[: len(COMMANDS)]:
        command = table.face.strip("`")
        tested = {*CHANGED.get(command, ()), *SAME.get(command, ()), *SHOWN.get(command, ())}
        assert tested == set(table.names(Fate.MAPPED)), command
        assert not table.names(Fate.REFUSED)


@pytest.mark.parametrize("table", TABLES[: len(COMMANDS)], ids=lambda table: table.face)
def test_an_option_without_effect_is_named(table: Any, capsys: pytest.CaptureFixture[str]) -> None:
    command = table.face.strip("`")
    needs(command)
    values = {"profile.enable": True, "debug": True, "is_s3_volume": True}
    numbers = ("pad_token_id", "refresh", "seed", "steps", "lines")
    idle = table.names(Fate.NO_EFFECT)
    change = {name: values.get(name, 7 if name.endswith(numbers) else "x") for name in idle}
    plain, noted = written(command, {}, "one"), written(command, change, "two")
    assert plain == noted
    said = capsys.readouterr().err
    assert [name for name in idle if f"note: '{name}' has no effect: " not in said] == []


def test_the_functions_have_the_parameters_of_dolma() -> None:
    for function, table in zip(FUNCTIONS, TABLES[len(COMMANDS) :], strict=True):
        assert set(inspect.signature(CALLS[function]).parameters) == set(table.settings)
        assert set(table.names(Fate.MAPPED)) - {"skip_on_failure"} == set(FUNCTIONS[function][2])
