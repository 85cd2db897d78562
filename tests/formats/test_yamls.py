from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from feedmill.errors import ConfigError
from feedmill.formats.yamls import read_config, read_settings, read_yaml


def value(text: str | bytes):
    return read_yaml(text, "f.yaml").value


@pytest.mark.parametrize(
    ("plain", "wanted"),
    [
        *[(word, None) for word in ("null", "NULL", "Null", "~", "")],
        *[(word, True) for word in ("true", "TRUE", "yes", "Yes")],
        *[(word, False) for word in ("false", "False", "no", "NO")],
        *[(word, word) for word in ("on", "off", "0x10", "0o7", "12:30", "2024-01-01", "nan", "inf", "-.inf", "1.2.3")],
        ("12", 12),
        ("+5", 5),
        ("-7", -7),
        ("012", 12),
        ("1_000", 1000),
        ("1e3", 1000.0),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("1e5_0", 1e50),
        ("1e", "1e"),
        ("a cat", "a cat"),
        ("'12'", "12"),
        ('"~"', "~"),
        ("''", ""),
        ("!!str 1", 1),
    ],
)
def test_scalars_follow_energons_rules(plain: str, wanted: object) -> None:
    found = value(f"a: {plain}\n")["a"]
    assert (found, type(found)) == (wanted, type(wanted))


def test_documents() -> None:
    assert value("a: |\n  12\nb: >\n  true\n") == {"a": "12\n", "b": "true\n"}
    assert value("1: a\ntrue: b\nnull: c\n") == {"1": "a", "true": "b", "null": "c"}
    assert value("<<: {a: 1}\n") == {"<<": {"a": 1}}
    assert value("- 1\n- [x, {y: }]\n") == [1, ["x", {"y": None}]]
    assert value("---\na: 1\n") == {"a": 1}
    assert value("") is value("# nothing\n") is None
    assert value("ключ: 値\n".encode()) == {"ключ": "値"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: {c\n", "f.yaml:3: not YAML"),
        ("a: b: c\n", "f.yaml:1: not YAML: mapping values are not allowed"),
        ("a: 1\n\tb: 2\n", "f.yaml:2: not YAML"),
        ("a: &x 1\n", "f.yaml:1: the anchor &x"),
        ("a: &x {b: 1}\n", "f.yaml:1: the anchor &x"),
        ("a: 1\nb: *x\n", "f.yaml:2: the alias \\*x"),
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: the key 'a' stands here and in line 1"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: a second document"),
        ("{a: 1}: b\n", "f.yaml:1: a key that is itself"),
        (b"a: \xff\n", "f.yaml: not YAML"),
        ("a: \x00\n", "f.yaml: not YAML"),
    ],
)
def test_refused_with_file_and_line(text: str | bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        read_yaml(text, "f.yaml")


def test_lines_of_paths() -> None:
    text = "a: 1\nlist:\n- x\n- k: v\n  deep:\n    deeper: 1\n\nend: >\n  folded\n"
    document = read_yaml(text, "dir/f.yaml")
    lines = {("a",): 1, ("list",): 2, ("list", 0): 3, ("list", 1): 4, ("list", 1, "deep", "deeper"): 6, ("end",): 8}
    assert {path: document.line(path) for path in lines} == lines
    assert document.line(("list", 1, "gone", 3)) == 4
    assert document.at(("end",)) == "dir/f.yaml:8"
    assert document.at(("gone",)) == "dir/f.yaml:1"


def test_deep_nesting_is_no_matter() -> None:
    found, depth = value("[" * 900 + "]" * 900), 0
    while found:
        found, depth = found[0], depth + 1
    assert depth == 899


def test_json_configs_follow_json() -> None:
    assert read_config('{"a": [1, "yes"]}', "split.json").value == {"a": [1, "yes"]}
    assert read_config("a: yes\n", "split.yaml").value == {"a": True}
    with pytest.raises(ConfigError, match=r"split.json:2: not JSON"):
        read_config('{"a":\n}', "split.json")


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(plain)
def test_what_pyyaml_writes_reads_back(data: object) -> None:
    assert value(yaml.dump(data, Dumper=_Quoting, sort_keys=False, allow_unicode=True)) == data


class _Quoting(yaml.SafeDumper):
    """Quotes every text, leaves numbers and words plain."""


_Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def test_settings_of_other_tools_allow_aliases_and_refuse_a_key_twice() -> None:
    assert read_settings("a: &x {b: [1]}\nc: *x", "f") == {"a": {"b": [1]}, "c": {"b": [1]}}
    assert read_settings("", "f") is None
    with pytest.raises(ConfigError, match="'b' is given twice") as info:
        read_settings("a:\n  b: 1\n  b: 2", "f.yaml")
    assert info.value.file == "f.yaml:3"
    for text in ("a: [", "!!python/object:os.system {}", b"\xff", "[" * 20000):
        with pytest.raises(ConfigError, match="no YAML"):
            read_settings(text, "f")
