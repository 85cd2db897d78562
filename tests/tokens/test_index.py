from __future__ import annotations

from pathlib import Path

import pytest

from feedmill.errors import ConfigError
from feedmill.tokens.verbs.index import index


def test_an_index_does_not_replace_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    (tmp_path / "link").symlink_to(tmp_path)
    for target in ("a.jsonl", "link/a.jsonl"):
        with pytest.raises(ConfigError, match="replace the file itself"):
            index(f"{tmp_path}/a.jsonl", f"{tmp_path}/{target}", overwrite=True)
    assert (tmp_path / "a.jsonl").read_text() == "{}\n"
