from __future__ import annotations

from pathlib import Path

import numpy as np

from feedmill.documents.find import find_documents
from feedmill.tokens.dolma_output import GroupedOptions, tokenize_grouped
from helpers.tokenizer_data import EOS, loaded, tokenizer_file, write_lines


def test_a_file_that_is_named_twice_is_there_twice(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": str(n), "text": f"text {n}"} for n in range(30)])
    out = tmp_path / "out"
    options = GroupedOptions(eos=loaded().require(EOS), unit_bytes=200)
    report = tokenize_grouped(find_documents([source, source]).files, str(out), tokenizer_file("tok1k"), options)
    stored = sum(np.fromfile(path, "<u2").size for path in out.glob("*.npy"))
    assert (report.documents, report.tokens) == (60, stored)
