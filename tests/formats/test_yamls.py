from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from feedmill import Recipe
from feedmill.errors import ConfigError
from feedmill.formats.yamls import Document, Marks, read_config, read_settings, read_yaml
from feedmill.mixture.options import columns_of, conditions_of


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
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: duplicate key 'a': it is also in line 1"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: the file has several documents"),
        ("{a: 1}: b\n", "f.yaml:1: a key is a mapping or list"),
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


@pytest.mark.parametrize("read", [read_yaml, read_settings, read_config])
@pytest.mark.parametrize("brackets", ["[]", ("{a: ", "}")])
def test_a_hundred_levels_are_read_and_more_refused_at_once(read: Any, brackets: Sequence[str]) -> None:
    left, right = brackets
    found, depth = read(left * 100 + right * 100, "f.yaml"), 0
    found = found.value if isinstance(found, Document) else found
    while found:
        found, depth = found[0] if isinstance(found, list) else found["a"], depth + 1
    assert depth >= 99
    with pytest.raises(ConfigError, match=r"f.yaml:1: this is nested more than 100 levels deep"):
        read(left * 200_000, "f.yaml")


def test_json_is_bounded_likewise() -> None:
    with pytest.raises(ConfigError, match="nested more than 100 levels"):
        read_config("[" * 500 + "]" * 500, "split.json")
    with pytest.raises(ConfigError, match="not JSON"):
        read_config("[" * 100_000, "split.json")


def test_aliases_unfold_to_a_bounded_number_of_values() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    with pytest.raises(ConfigError, match="aliases expand to more than 100,000 values"):
        read_settings("\n".join(lines), "f.yaml")
    with pytest.raises(ConfigError, match="contains itself"):
        read_settings("a: &a [*a]", "f.yaml")
    deep = ["a0: &a0 x", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 200))]
    with pytest.raises(ConfigError, match="nested more than 100"):
        read_settings("\n".join(deep), "f.yaml")
    assert read_settings("a: &a [1]\nb: *a", "f.yaml") == {"a": [1], "b": [1]}


def test_values_that_their_yaml_type_does_not_take_are_one_message() -> None:
    for text in ('!!int ""', "2020-13-01", "!!binary x", "!!omap 1"):
        with pytest.raises(ConfigError, match="not YAML"):
            read_settings(text, "f.yaml")


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
    with pytest.raises(ConfigError, match="the key 'b' occurs twice") as info:
        read_settings("a:\n  b: 1\n  b: 2", "f.yaml")
    assert info.value.file == "f.yaml:3"
    for text in ("a: [", "!!python/object:os.system {}", b"\xff"):
        with pytest.raises(ConfigError, match="not YAML"):
            read_settings(text, "f")


@pytest.mark.parametrize(
    ("plain", "value"), [("010", 8), ("-0_17", -15), ("1:30", 90), ("190:20:30", 685_230), ("1:30.5", 90.5)]
)
def test_numbers_that_only_yaml_1_1_reads_so_are_an_error_in_our_files(plain: str, value: float):
    """Other tools read their own files so, and theirs keep that meaning."""
    assert read_settings(f"a: {plain}", "f.yaml") == Marks(f"a: {plain}", "f.yaml").data == {"a": value}
    for text in (
        f"b: 1\na: {plain}",
        f"b: 1\n{plain}: x",
        f"b:\n- {plain}",
        f"b: 1\na: !!{'int' if '.' not in plain else 'float'} {plain}",
    ):
        for read in (Marks, read_settings):
            with pytest.raises(
                ConfigError, match=rf"f\.yaml:2: YAML 1\.1 reads '{plain}' as {value}, a number of base"
            ):
                read(text, "f.yaml", ours=True)


@pytest.mark.parametrize(
    "plain", ["007", "0", "09", "0x10", "0b11", "1_000", "0.50", "'010'", '"1:30"', "0o17", "1.2.3"]
)
def test_numbers_without_a_second_reading_are_as_before(plain: str):
    assert Marks(f"a: {plain}", "f.yaml", ours=True).data == Marks(f"a: {plain}", "f.yaml").data


def test_a_recipe_and_conditions_have_no_such_numbers():
    with pytest.raises(ConfigError, match=r"recipe:3: YAML 1\.1 reads '010' as 8"):
        Recipe.parse("blend:\n- {path: a.jsonl, weight: 1}\n- {path: b.jsonl, weight: 010}\n")
    with pytest.raises(ConfigError, match=r"--where:1: YAML 1\.1 reads '1:30' as 90"):
        conditions_of("length: 1:30")
    with pytest.raises(ConfigError, match=r"--by:1: YAML 1\.1 reads '010' as 8"):
        columns_of("{column: score, quantiles: 010}")
