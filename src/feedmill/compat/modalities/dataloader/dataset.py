"""Modalities' datasets: ``from feedmill.compat.modalities.dataloader.dataset import ...``.

The classes have the arguments, keys, types and errors of Modalities 0.5, and give the same samples. Where they differ,
docs/migration/modalities.md says so: an index is read without unpickling, a missing raw index is made in memory, and
`PackedMemMapDatasetMegatron` follows the rule that its own comments describe. A loader that asks for many samples at
once (torch's ``DataLoader``) gets them in one read.
"""

from __future__ import annotations

import mmap
import operator
from collections import UserDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feedmill.documents.textpath import TextReader
from feedmill.errors import ConfigError
from feedmill.formats.tokens.pbin import open_pbin
from feedmill.formats.tokens.raw_index import index_lines, load_raw_index
from feedmill.formats.tokens.windows import BlockDataset, WindowDataset
from feedmill.storage import open_store

if TYPE_CHECKING:
    from feedmill.compat.modalities.tokenization.tokenizer_wrapper import TokenizerWrapper

    TorchDataset = object
else:
    try:
        from torch.utils.data import Dataset as TorchDataset  # samplers and configurations check for it
    except ImportError:
        TorchDataset = object

_IN_RAM = {1: np.uint8, 2: np.int32, 4: np.int64}
_EMPTY = "the text is empty"


class BatchEncoding(UserDict[str | None, Any]):
    """A mapping whose keys are attributes, too, like that of transformers."""

    def __getattr__(self, name: str) -> Any:
        if name != "data" and name in self.data:
            return self.data[name]
        raise AttributeError(name)


class Dataset(TorchDataset):
    """Base of the datasets: the path of their data, and the key of the tokens in a sample."""

    def __init__(self, raw_data_path: Path | None, sample_key: str | None) -> None:
        self.raw_data_path, self.sample_key = raw_data_path, sample_key


class MemMapDataset(Dataset):
    """The lines of a JSONL file, tokenized when they are read. A sample is a list of ids.

    Args:
        raw_data_path: the JSONL file.
        tokenizer: an object with ``tokenize(text)``.
        sample_key: unused, as in Modalities.
        index_path: the index of its lines; default: beside the file, with the suffix ``.idx``. It is made in memory if
            it does not exist, which reads the file once.
        jq_pattern: the text in each line.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: the index is corrupt or that of another file; or a line is not JSON.
    """

    def __init__(
        self,
        raw_data_path: Path,
        tokenizer: TokenizerWrapper,
        sample_key: str,
        index_path: Path | None = None,
        jq_pattern: str = ".text",
    ) -> None:
        super().__init__(raw_data_path, sample_key)
        path = Path(raw_data_path)
        if not path.is_file():
            raise FileNotFoundError(f"Raw data file {path} does not exist")
        self.tokenizer, self._pattern = tokenizer, jq_pattern
        self._reader: TextReader | None = TextReader(jq_pattern)
        index = path.with_suffix(".idx") if index_path is None else Path(index_path)
        store = open_store(path.absolute().parent)
        if index.is_file():
            near = Path(index).absolute()
            self._starts, self._lengths = load_raw_index(open_store("/"), str(near)[1:], str(path.absolute())[1:])
        elif index_path is not None:
            raise FileNotFoundError(f"The index file {index} does not exist")
        else:
            found = index_lines(store, path.name)
            self._starts, self._lengths = found.starts, found.lengths
        self._bytes: mmap.mmap | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_bytes": None, "_reader": None}

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, idx: int) -> Any:
        return self.tokenizer.tokenize(text=self._text(idx))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        many = getattr(self.tokenizer, "tokenize_many", None)
        texts = [self._text(index) for index in indices]
        return [self.tokenizer.tokenize(text=text) for text in texts] if many is None else list(many(texts))

    def _text(self, idx: int) -> str:
        if idx >= len(self):
            raise IndexError("Index out of bounds")
        number = range(len(self))[idx]
        if self._bytes is None:
            with open(str(self.raw_data_path), "rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._reader is None:
            self._reader = TextReader(self._pattern)
        start, length = int(self._starts[number]), int(self._lengths[number])
        found = self._reader.record(self._bytes[start : start + length])
        if found.text is None and found.reason != _EMPTY:
            raise ValueError(f"{self.raw_data_path}, line {number + 1}: {found.reason}")
        return found.text or ""


class PackedMemMapDatasetBase(Dataset):
    """The documents of a ``.pbin``, with their EOD. A sample maps `sample_key` to their tokens.

    Tokens are uint8, int32 or int64, for 1, 2 or 4 bytes in the file. A slice gives one sample with a list of arrays.

    Args:
        raw_data_path: the file.
        sample_key: the key of the tokens.
        load_index: accepted without effect: the index is mapped, not loaded.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: the file is corrupt.
    """

    def __init__(self, raw_data_path: Path, sample_key: str, load_index: bool | None = True) -> None:  # noqa: ARG002
        super().__init__(raw_data_path, sample_key)
        path = Path(raw_data_path).absolute()
        if not path.is_file():
            raise FileNotFoundError(
                f"Packed Data was not found at {path}."
                " Create it with 'feedmill compat modalities data pack_encoded_data'."
            )
        self._tokens = open_pbin(open_store(path.parent), path.name, str(raw_data_path))
        self._token_size_in_bytes = self._tokens.shards[0].dtype.itemsize
        self._dtype = _IN_RAM[self._token_size_in_bytes]

    @property
    def token_size_in_bytes(self) -> int:
        """Return the bytes of a token in the file."""
        return self._token_size_in_bytes

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, idx: int | slice) -> BatchEncoding:
        if isinstance(idx, slice):
            if idx.step is not None and idx.step != 1:
                raise ValueError("Slicing with step != 1 is not supported.")
            return BatchEncoding({self.sample_key: self._read(range(len(self))[idx])})
        return self.__getitems__([idx])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[BatchEncoding]:
        numbers = [range(len(self))[operator.index(index)] for index in indices]
        return [BatchEncoding({self.sample_key: tokens}) for tokens in self._read(numbers)]

    def _read(self, numbers: Sequence[int]) -> list[npt.NDArray[Any]]:
        wanted = np.asarray(numbers, np.int64)
        found = self._tokens.read_tokens(wanted, np.zeros(len(wanted), np.int64), self._tokens.lengths[wanted])
        return [tokens.astype(self._dtype) for tokens in found]


class PackedMemMapDatasetContinuous(PackedMemMapDatasetBase):
    """Blocks of `block_size` tokens over all documents, laid end to end.

    Args:
        raw_data_path, sample_key, load_index: see `PackedMemMapDatasetBase`.
        block_size: tokens of a sample, at least 2.
        reuse_last_target: the last token of a block is the first one of the next.

    Raises:
        ValueError: the file has fewer tokens than a block, or `block_size` is below 2.
    """

    def __init__(
        self,
        raw_data_path: Path,
        sample_key: str,
        block_size: int,
        reuse_last_target: bool,
        load_index: bool | None = False,
    ) -> None:
        super().__init__(raw_data_path, sample_key, load_index)
        self.block_size, self.reuse_last_target = block_size, reuse_last_target
        tokens = self._tokens.tokens
        if tokens < block_size:
            raise ValueError(
                f"Block size ({block_size}) is larger than the total number of tokens in the dataset ({tokens})."
            )
        if block_size < 2:
            raise ValueError("Block size must be at least 2.")
        stride = block_size - 1 if reuse_last_target else block_size
        self._windows = WindowDataset(self._tokens, width=block_size, stride=stride, dtype=self._dtype)

    def __len__(self) -> int:
        return len(self._windows)

    def _read(self, numbers: Sequence[int]) -> list[npt.NDArray[Any]]:
        return list(self._windows.gather(np.asarray(numbers, np.int64)))


class PackedMemMapDatasetMegatron(PackedMemMapDatasetBase):
    """Blocks of `block_size` tokens that begin with a document, as the comments of the original describe.

    Raises:
        ValueError: there is no block, or `block_size` is below 2.
    """

    def __init__(self, raw_data_path: Path, sample_key: str, block_size: int) -> None:
        super().__init__(raw_data_path, sample_key)
        self.block_size = block_size
        try:
            self._windows = BlockDataset(self._tokens, block_size=block_size, dtype=self._dtype)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    def __len__(self) -> int:
        return len(self._windows)

    def _read(self, numbers: Sequence[int]) -> list[npt.NDArray[Any]]:
        return list(self._windows.gather(np.asarray(numbers, np.int64)))


class CombinedDataset(Dataset):
    """Datasets, one after another."""

    def __init__(self, datasets: list[Any]) -> None:
        self.datasets = datasets
        sizes = [len(dataset) for dataset in datasets]
        self.cumulative_sizes = np.cumsum(sizes, dtype=np.int64)

    def __len__(self) -> int:
        return int(self.cumulative_sizes[-1])

    def __getitem__(self, idx: int) -> Any:
        number = range(len(self))[operator.index(idx)]
        which = int(np.searchsorted(self.cumulative_sizes, number, side="right"))
        before = int(self.cumulative_sizes[which - 1]) if which else 0
        return self.datasets[which][number - before]
