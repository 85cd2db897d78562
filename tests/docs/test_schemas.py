"""The JSON schemas are current, accept what the documentation shows, and know the keys that are read."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

import feedmill as fm
from feedmill.curation.mix import config
from feedmill.errors import ConfigError
from helpers.pages import blocks

jsonschema = pytest.importorskip("jsonschema")
DOCS = Path(__file__).parents[2] / "docs"
MADE: dict[Path, str] = runpy.run_path(str(DOCS / "schemas/write.py"))["schemas"]()
CHECK = {path.stem: jsonschema.Draft202012Validator(json.loads(text)) for path, text in MADE.items()}

WHOLE: dict[str, Any] = {
    "streams": [
        {
            "name": "web",
            "documents": ["web/documents/*"],
            "attributes": ["quality"],
            "rate": 0.5,
            "filter": {"include": ["$.id"], "exclude": ["$.none"], "syntax": "jsonpath"},
            "span_replacement": [{"span": "$.x", "min_score": 0.5, "max_score": 1, "replacement": "", "syntax": "jq"}],
            "output": {"path": "out", "max_size_in_bytes": 9, "min_text_length": 1, "discard_fields": ["attributes"]},
            "compression": {"input": "gz", "output": "zst"},
        }
    ],
    "shuffle": False,
    "permute": True,
    "seed": 1,
    "id": "auto",
    "allow_missing": True,
    "allow_stale": True,
    "allow_empty": True,
    "processes": 2,
    "dryrun": True,
}


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.stem)
def test_the_schema_is_current_and_one(path: Path) -> None:
    assert path.read_text() == MADE[path], "run: python docs/schemas/write.py"
    CHECK[path.stem].check_schema(json.loads(MADE[path]))


def test_what_the_pages_show_is_accepted() -> None:
    counts = dict.fromkeys(CHECK, 0)
    for page in DOCS.rglob("*.md"):
        for block in blocks(page.read_text()):
            tree = yaml.safe_load(block.text) if block.language == "yaml" else None
            if not isinstance(tree, dict):
                continue
            kind = "filter" if "streams" in tree else "recipe" if tree.keys() & {"blend", "source", "concat"} else None
            if kind and "__class__" not in tree:
                problems = [error.message for error in CHECK[kind].iter_errors(tree)]
                assert not problems, f"{page.name}:{block.line}: {problems}"
                counts[kind] += 1
    assert counts["recipe"] > 20 and counts["filter"] > 2, counts


def test_the_filter_schema_has_the_keys_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[str, set[str]] = {}
    end = config._Reader.end

    def remember(self: Any, *ignored: str) -> None:
        read[re.sub(r"\[\d+\]", "", self.where)] = {*self.known, *ignored}
        end(self, *ignored)

    monkeypatch.setattr(config._Reader, "end", remember)
    whole = json.loads(json.dumps(WHOLE).replace('"$.x"', '".x"'))
    config.read_config(whole)
    described: dict[str, set[str]] = {}

    def walk(schema: dict[str, Any], where: str) -> None:
        schema = schema.get("items", schema)
        if "properties" in schema:
            described[where] = set(schema["properties"])
            for name, inner in schema["properties"].items():
                walk(inner, f"{where}.{name}".lstrip("."))

    walk(fm.documents.FilterConfig.json_schema(), "")
    assert described == read
    stream = fm.documents.FilterConfig.json_schema()["properties"]["streams"]["items"]["properties"]
    assert stream["output"]["properties"]["max_size_in_bytes"]["default"] == config.MAX_SIZE
    assert stream["filter"]["properties"]["syntax"]["enum"] == [config.JSONPATH, config.JQ]
    assert not list(CHECK["filter"].iter_errors(whole))


@pytest.mark.parametrize(
    "change",
    [
        {"streams": []},
        {"seeds": 1},
        {"seed": "x"},
        {"streams": [{"name": "a/b", "output": {"path": "x"}}]},
        {"streams": [{"name": "a", "output": {}}]},
        {"streams": [{"name": "a", "output": {"path": "x"}, "span_replacement": [{"span": "$.x"}]}]},
    ],
)
def test_the_schema_rejects_what_is_rejected(change: dict[str, Any]) -> None:
    assert list(CHECK["filter"].iter_errors(WHOLE | change))
    with pytest.raises(ConfigError):
        config.read_config(WHOLE | change)
