"""Files of splits by their names: what datasets 4 gives for the same folders."""

from __future__ import annotations

import pytest

from feedmill.formats.hub_splits import by_split


@pytest.mark.parametrize(
    ("paths", "splits"),
    [
        (["0.parquet", "1.parquet"], {"train": ["0.parquet", "1.parquet"]}),
        (["trainx.parquet", "xtest.parquet"], {"train": ["trainx.parquet", "xtest.parquet"]}),
        (
            ["data/random-00000-of-00002.parquet", "data/test-00000-of-00001-abc.parquet", "train.parquet"],
            {"random": ["data/random-00000-of-00002.parquet"], "test": ["data/test-00000-of-00001-abc.parquet"]},
        ),
        (
            ["0/training/train.parquet", "my_test_1/data.parquet", "test/validation/x.parquet", "testing.b/0.parquet"],
            {
                "train": ["0/training/train.parquet"],
                "validation": ["test/validation/x.parquet"],
                "test": ["test/validation/x.parquet", "my_test_1/data.parquet", "testing.b/0.parquet"],
            },
        ),
        (
            ["a-train.parquet", "deep/dev1.parquet", "eval.parquet", "left.parquet", "train 2.parquet", "val.parquet"],
            {
                "train": ["train 2.parquet", "a-train.parquet"],
                "validation": ["deep/dev1.parquet", "val.parquet"],
                "test": ["eval.parquet"],
            },
        ),
    ],
)
def test_the_files_of_each_split(paths: list[str], splits: dict[str, list[str]]) -> None:
    assert by_split(paths, str) == splits
