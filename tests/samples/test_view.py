from __future__ import annotations

import pickle
import sys

import pytest

from feedmill.errors import ConfigError, DataError, NotFound, TrustError
from feedmill.formats.base import Order
from feedmill.formats.yamls import read_yaml
from feedmill.samples.decode import Decoder
from feedmill.samples.types import CaptioningSample, TextSample
from feedmill.samples.view import DatasetView, build_view
from helpers.raw_samples import sample_of

OURS = "{__module__: megatron.energon, __class__: %s}"
TEXT = f"sample_type: {OURS % 'TextSample'}\n"
LOADED = TEXT + "sample_loader: code.py:load\npart_filter: [txt]\n"
WHERE = "ds/.nv-meta/dataset.yaml"


def build(text: str, code: str = "", trust: bool = False) -> DatasetView:
    def read_meta(path: str) -> bytes:
        if path != "code.py":
            raise NotFound("there is no such file", file=path)
        return code.encode()

    return build_view(read_yaml(text, WHERE), decoder=Decoder(), read_meta=read_meta, where=WHERE, trust=trust)


PARTS = {"txt": b"hello", "json": b'{"a": "b"}', "jpg": b"no picture"}


def only(view: DatasetView, **options):
    assert view.view is not None
    (made,) = view.view([sample_of(PARTS, index=7, decode=view.decode, **options)])
    return made


@pytest.mark.parametrize(
    "text",
    [
        TEXT + "field_map: {text: txt}\n",
        "sample_type: {__class__: TextSample}\nfield_map: {text: txt}\n",
        "sample_type: {__module__: megatron.energon.flavors.text, __class__: TextSample}\nfield_map: {text: txt}\n",
        "__module__: megatron.energon\n__class__: StandardWebdatasetFactory\n" + TEXT + "field_map: {text: txt}\n",
        "__module__: megatron.energon\n__class__: TextWebdataset\nfield_map:\n  text: txt\n",
    ],
)
def test_field_map_forms(text: str) -> None:
    view = build(text)
    assert (view.type_name, view.subflavors, view.arguments) == ("TextSample", {}, {})
    assert [part for part in PARTS if view.part_filter(part)] == ["txt"]
    sample = only(view)
    assert type(sample) is TextSample
    assert (sample.__key__, sample.__restore_key__, sample.text) == ("k0", ("Webdataset", 7), "hello")
    assert (sample.__subflavors__, sample.__sources__[0].names) == ({}, ("k0.txt",))
    assert only(pickle.loads(pickle.dumps(view))) == sample


def test_subflavors_and_loader_arguments() -> None:
    view = build(TEXT + "field_map: {text: txt}\nsubflavors: {level: 3}\nsplit_part: val\nparallel_shard_iters: 4\n")
    assert view.subflavors == {"level": 3}
    assert view.arguments == {"split_part": "val", "parallel_shard_iters": 4}
    assert view.order == Order(parallel=4)
    orders = {
        "shuffle_over_epochs: null": Order(shuffles=False),
        "shuffle_over_epochs: -1": Order(passes=-1),
        "shuffle_over_epochs: 3\nmax_samples_per_sequence: 9": Order(passes=3, sequence=9),
        "parallel_shard_iters: null": Order(),
        "shuffle_over_epochs: 1": Order(passes=1),
    }
    assert {text: build(TEXT + f"field_map: {{text: txt}}\n{text}\n").order for text in orders} == orders
    assert only(view).__subflavors__ == {"level": 3}
    # A metadataset may have put its own on top.
    assert only(view, subflavors={"level": 9}).__subflavors__ == {"level": 9}


def test_crude_samples_stay_samples() -> None:
    view = build("__module__: megatron.energon\n__class__: CrudeWebdataset\nsubflavors: {crude: true}\n")
    assert (view.view, view.part_filter, view.type_name) == (None, None, "CrudeSample")
    assert view.subflavors == {"crude": True}
    view = build("__module__: megatron.energon\n__class__: CrudeWebdataset\npart_filter: [json, txt]\n")
    sample = only(view)
    assert dict(sample) == {"txt": "hello", "json": {"a": "b"}}
    assert sample.source.names == ("k0.txt", "k0.json")
    with pytest.raises(NotFound, match=r"no part 'jpg' \(it has: json, txt\)"):
        sample.raw("jpg")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "dataset.yaml: expected a mapping, found NoneType"),
        ("- a\n", "dataset.yaml:1: expected a mapping, found list"),
        ("field_map: {text: txt}\n", "dataset.yaml:1: expected 'sample_type'"),
        ("sample_type: TextSample\nfield_map: {text: txt}\n", "dataset.yaml:1: expected 'sample_type' with"),
        (TEXT, "dataset.yaml:1: expected 'field_map' or 'sample_loader', found neither"),
        (LOADED + "field_map: {text: txt}\n", "expected 'field_map' or 'sample_loader', found both"),
        (TEXT + "field_map: {text: txt}\npart_filter: [txt]\n", "dataset.yaml:3: 'part_filter' cannot be used with"),
        (TEXT + "sample_loader: code.py\n", "dataset.yaml:2: 'sample_loader' needs a 'part_filter'"),
        (
            TEXT + "\nfield_map:\n  texts: txt\n",
            r"dataset.yaml:3: TextSample has no field 'texts' \(did you mean 'text'",
        ),
        (
            TEXT + "field_map: {text: txt}\nfeild_map: 1\n",
            r"dataset.yaml:3: unknown key 'feild_map' \(did you mean 'fie",
        ),
        (TEXT + "field_map: {text: txt}\nsubflavors: 3\n", "dataset.yaml:3: 'subflavors' must be a mapping"),
        (
            f"sample_type: {OURS % 'TextSampel'}\nfield_map: {{}}\n",
            r"dataset.yaml:1: .* \(did you mean 'TextSample'\?\)",
        ),
        ("__module__: megatron.energon\n__class__: MetadatasetV2\n", "this is a metadataset"),
        ("__module__: megatron.energon\n__class__: CrudeWebdatasett\n", "dataset.yaml:2: unknown sample type"),
        ("__class__: CrudeWebdataset\nfield_map: {text: txt}\n", "unknown key 'field_map'.*crude data"),
        ("__class__: CrudeWebdataset\npart_filter: [1]\n", "dataset.yaml:2: expected part names"),
        (TEXT + "field_map: {text: txt}\nshuffle_over_epochs: 0\n", "dataset.yaml:3: 'shuffle_over_epochs' must"),
        (TEXT + "field_map: {text: txt}\nparallel_shard_iters: yes\n", "dataset.yaml:3: 'parallel_shard_iters' must"),
        (TEXT + "field_map: {text: txt}\nmax_samples_per_sequence: -1\n", "must be a number from 1, or null, found -1"),
        (TEXT + "field_map: {text: txt}\nsplit_part: [val]\n", "dataset.yaml:3: 'split_part' must be a name"),
        (TEXT + "field_map: {text: txt}\nsubset: null\n", "dataset.yaml:3: 'subset' is unsupported here: Energon"),
        (TEXT + "field_map: {text: txt}\ntraining: false\n", "dataset.yaml:3: 'training' is unsupported here"),
        (TEXT + "field_map: {text: txt}\ndecoder: null\n", "dataset.yaml:3: 'decoder' is unsupported here: a program"),
    ],
)
def test_bad_descriptions_name_line_and_fix(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (LOADED, "ds/.nv-meta/code.py"),
        (TEXT + "sample_loader: {__module__: os, __function__: system}\npart_filter: [txt]\n", "'os'"),
        ("sample_type: {__module__: subprocess, __class__: Popen}\nfield_map: {args: txt}\n", "'subprocess'"),
        ("__class__: CrudeWebdataset\npart_filter: code.py:keep\n", "ds/.nv-meta/code.py"),
        ("__module__: mine\n__class__: MyFactory\n", "'mine'"),
    ],
)
def test_code_in_the_data_runs_only_when_trusted(text: str, named: str) -> None:
    with pytest.raises(TrustError) as caught:
        build(text, "raise SystemExit('ran')")
    assert named in caught.value.what and "trust=True" in str(caught.value) and "--trust" in str(caught.value)


CODE = """
from dataclasses import dataclass

@dataclass
class Answer:
    text: str

def load(raw):
    assert raw["__restore_key__"] == ("Webdataset", 7) and raw["__shard__"] == "0.tar"
    assert [name for name in raw if not name.startswith("__")] == ["txt"]
    return {"__key__": "new-" + raw["__key__"], "__restore_key__": "mine", "text": Answer(raw["txt"]).text.upper()}

def keep(part):
    return part == "txt"

def part_filter(part):
    return part == "json"
"""


def test_trusted_sample_loader() -> None:
    for text in (LOADED, LOADED.replace("[txt]", "code.py:keep")):
        sample = only(build(text, CODE, trust=True))
        assert (sample.__key__, sample.text) == ("new-k0", "HELLO")
        assert (sample.__restore_key__, sample.__sources__[0].names) == (("Webdataset", 7), ("k0.txt",))
    crude = build("__class__: CrudeWebdataset\npart_filter: code.py\n", CODE, trust=True)
    assert list(only(crude)) == ["json"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def load(raw): return {}", "code.py:load did not return the required field text"),
        ("def load(raw): return {'text': 1, 'txet': 2}", "code.py:load returned the unknown field txet"),
        ("def load(raw): return [1]", "code.py:load returned list"),
        ("def load(raw): return raw['gone']", "code.py:load failed: KeyError: 'gone'"),
    ],
)
def test_a_failing_sample_loader_names_the_sample(code: str, message: str) -> None:
    view = build(LOADED, code, trust=True)
    with pytest.raises(DataError, match=message) as caught:
        only(view)
    assert (caught.value.file, caught.value.record, caught.value.offset) == ("ds/0.tar", "k0", 512)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (LOADED, "x = 1", "code.py has no function 'load'"),
        (LOADED, "load = 1", "'load' is not a function"),
        (LOADED, "def load(:", "code.py fails when run: SyntaxError"),
        (LOADED, "1 / 0", "code.py fails when run: ZeroDivisionError"),
        (LOADED.replace("code.py", "gone.py"), "", "the code file ds/.nv-meta/gone.py does not exist"),
        ("sample_type: {__module__: no.such.module, __class__: A}\nfield_map: {}\n", "", "cannot be imported"),
        ("sample_type: {__module__: math, __class__: A}\nfield_map: {}\n", "", "the module 'math' has no 'A'"),
        ("sample_type: {__module__: math, __class__: sin}\nfield_map: {}\n", "", "'sin' is not a dataclass"),
    ],
)
def test_trusted_code_that_is_broken(text: str, code: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build(text, code, trust=True)
    assert caught.value.file.startswith(WHERE)


def test_own_sample_type_when_trusted(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_types.py").write_text(
        "from dataclasses import dataclass\n"
        "from feedmill.samples.types import TypedSample\n"
        "@dataclass(kw_only=True)\nclass Mine(TypedSample):\n    words: str\n"
        "@dataclass\nclass Plain:\n    words: str\n    __key__: str\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("Mine", "Plain"):
        text = f"sample_type: {{__module__: own_types, __class__: {name}}}\nfield_map: {{words: txt}}\n"
        sample = only(build(text, trust=True))
        assert (type(sample).__name__, sample.__key__, sample.words) == (name, "k0", "hello")
    monkeypatch.delitem(sys.modules, "own_types")


def test_a_bad_part_names_file_and_member() -> None:
    view = build(f"sample_type: {OURS % 'CaptioningSample'}\nfield_map: {{image: jpg, caption: txt}}\n")
    assert view.type_name == CaptioningSample.__name__
    with pytest.raises(DataError, match=r"^ds/0.tar 'k0.jpg' at byte 512: the part 'jpg' cannot be decoded"):
        only(view)


def test_a_plain_mapping_will_do() -> None:
    config = {"sample_type": {"__class__": "TextSample"}, "field_map": {"text": "txt"}}
    view = build_view(config, decoder=None, read_meta=lambda path: b"", where="x.yaml")
    assert only(view).text == b"hello"
    with pytest.raises(ConfigError, match=r"^x.yaml: unknown key 'fieldmap'"):
        build_view({**config, "fieldmap": 1}, decoder=None, read_meta=lambda path: b"", where="x.yaml")
