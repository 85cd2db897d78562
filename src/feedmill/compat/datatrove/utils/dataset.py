"""datatrove's datasets of ``.ds`` files: ``from feedmill.compat.datatrove.utils.dataset import ...``.

The classes have the arguments, keys and types of datatrove 0.10, and give the same samples. They also accept the names
that Nanotron passes: ``folder_path``, ``eos_token_id``, ``read_path``. Positions from the index are found by binary
search, at any sample.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from feedmill.compat.datatrove.settings import FOLDER
from feedmill.documents.find import listed_by_datatrove
from feedmill.errors import ConfigError, NotFound
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.ds import FILE_SEED, open_ds
from feedmill.formats.tokens.windows import WindowDataset
from feedmill.kernels.bounds import bounds_of
from feedmill.storage import open_store, split_url

if TYPE_CHECKING:
    TorchDataset = object
else:
    try:
        from torch.utils.data import Dataset as TorchDataset
    except ImportError:
        TorchDataset = object


class _Windows(TorchDataset):
    """Windows of ``seq_len + 1`` tokens. A sample has ``input_ids`` and, on request, ``positions``: int64 tensors."""

    def __init__(self, tokens: TokenDataset, seq_len: int, positions: bool, eos: int | None) -> None:
        self.seq_len, self.return_positions, self.positions_from_eos_token_id = seq_len, positions, eos
        self._tokens, self._windows = tokens, None
        if tokens.tokens > seq_len:
            try:
                self._windows = WindowDataset(tokens, width=seq_len + 1, positions=positions, eos=eos)
            except ConfigError:  # no file has a whole window
                if any(shard.tokens > seq_len for shard in tokens.shards):
                    raise

    def __len__(self) -> int:
        return 0 if self._windows is None else len(self._windows)

    def __getitem__(self, item: int) -> dict[str, Any]:
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """Return many samples with one read."""
        import torch

        numbers = [operator.index(item) for item in items]
        for number in numbers:
            if not 0 <= number < len(self):
                raise IndexError(f"sample {number} of {len(self)}")
        if self._windows is None:
            return []
        fields = ("input_ids", "positions") if self.return_positions else ("input_ids",)
        samples = self._windows.read_raw(np.asarray(numbers, np.int64))
        return [{name: torch.as_tensor(np.asarray(sample[name], np.int64)) for name in fields} for sample in samples]


class DatatroveFileDataset(_Windows):
    """One ``.ds`` file.

    Args:
        file_path: path or URL.
        seq_len: tokens of a sample, without the last target.
        token_size: bytes per token, 2 or 4.
        return_positions: whether samples have ``positions``.
        positions_from_eos_token_id: the id that ends documents; None to read their ends from the index.
        fsize: bytes of the file, for comparison; None not to compare.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: the file has another size or token size.
        NotFound: positions need the index, which does not exist.
    """

    def __init__(
        self,
        file_path: str | os.PathLike[str],
        seq_len: int,
        token_size: int = 2,
        return_positions: bool = False,
        positions_from_eos_token_id: int | None = None,
        fsize: int | None = None,
    ) -> None:
        self.file_path, self.token_size = os.fspath(file_path), token_size
        folder, name = split_url(self.file_path)
        try:
            tokens = open_ds(open_store(folder), name, self.file_path, token_size=token_size)
        except NotFound as error:
            raise FileNotFoundError(str(error)) from None
        size = sum(shard.tokens * shard.dtype.itemsize for shard in tokens.shards)
        if fsize is not None and fsize != size:
            raise ConfigError(
                f"expected {fsize} bytes by fsize, found {size}", file=self.file_path, fix="Remove 'fsize'."
            )
        super().__init__(tokens, seq_len, return_positions, positions_from_eos_token_id)


class DatatroveFolderDataset(_Windows):
    """The ``.ds`` files of a folder, one after another.

    Args:
        data_folder: path or URL; `folder_path` is its name in Nanotron. `read_path`: a copy to read instead.
        seq_len: tokens of a sample, without the last target.
        filename_pattern: pattern of paths below the folder by the rules of fsspec, where ``*`` stops at ``/`` and
            ``**`` does not. One without a wildcard is the end of a name in the folder itself. With `folder_path`, it
            may begin with the folder, as in Nanotron. None or "" for all files.
        recursive: whether ``**`` goes into subfolders.
        token_size: bytes per token, 2 or 4.
        shuffle, seed: permute the sorted files with ``numpy.random.default_rng(seed)``.
        return_positions, positions_from_eos_token_id: see `DatatroveFileDataset`; in Nanotron, `eos_token_id`.
        paths_file: unsupported.

    Attributes:
        lens: list of int, the number of the first sample of each file, and the number of samples.

    Raises:
        FileNotFoundError: the folder has no such files.
        ConfigError: a file has another token size, the pattern matches files that are no ``.ds`` files, or
            `paths_file` is given.
    """

    def __init__(
        self,
        data_folder: str | os.PathLike[str] | None = None,
        seq_len: int = 0,
        filename_pattern: str | None = ".ds",
        recursive: bool = True,
        token_size: int = 2,
        shuffle: bool = False,
        seed: int = FILE_SEED,
        return_positions: bool = False,
        positions_from_eos_token_id: int | None = None,
        paths_file: str | None = None,
        *,
        folder_path: str | os.PathLike[str] | None = None,
        eos_token_id: int | None = None,
        read_path: str | os.PathLike[str] | None = None,
    ) -> None:
        given = folder_path if data_folder is None else data_folder
        if given is None or seq_len < 1:
            raise TypeError("expected data_folder and seq_len")
        FOLDER.take({"paths_file": paths_file})
        self.folder_path, self.recursive, self.token_size = os.fspath(given), recursive, token_size
        self.shuffle, self.seed = shuffle, seed
        self.filename_pattern = filename_pattern or "**"
        before = f"{self.folder_path.rstrip('/')}/"
        if folder_path is not None:  # Nanotron puts the folder before the pattern
            self.filename_pattern = self.filename_pattern.removeprefix(before)
        folder = os.fspath(read_path or given)
        try:
            tokens = open_ds(
                open_store(folder),
                "",
                folder,
                select=partial(_matching, folder, self.filename_pattern, recursive),
                seed=seed if shuffle else None,
                token_size=token_size,
            )
        except NotFound as error:
            raise FileNotFoundError(str(error)) from None
        eos = positions_from_eos_token_id if eos_token_id is None else eos_token_id
        super().__init__(tokens, seq_len, return_positions, eos)
        counts = [shard.tokens // (seq_len + 1) for shard in tokens.shards]
        self.lens: list[int] = bounds_of(counts).tolist()

    @property
    def files(self) -> list[str]:
        """Return the paths of the files, in order."""
        return [self._tokens.store.locate(shard.path) for shard in self._tokens.shards]


def _matching(folder: str, pattern: str, recursive: bool, paths: list[str]) -> list[str]:
    """Return the files of a folder that datatrove reads for a pattern.

    Raises:
        ConfigError: the pattern is invalid, or matches other files than ``.ds`` files.
        FileNotFoundError: it matches none.
    """
    found = listed_by_datatrove(paths, pattern, recursive)
    if not found:
        raise FileNotFoundError(f'No files matching "{pattern}" found in {folder}')
    other = next((path for path in found if not path.endswith(".ds")), None)
    if other is not None:
        raise ConfigError(
            f"the pattern {pattern!r} matches {other}, which is no .ds file",
            file=folder,
            kind="bad-pattern",
            fix="Let it end in .ds: datatrove would read all bytes of this file as tokens.",
        )
    return found
