"""Open token data as windows or blocks, with the options of each framework's rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from feedmill.errors import ConfigError
from feedmill.formats.base import Dataset
from feedmill.formats.registry import by_name


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """Options of `feedmill.open` for windows and blocks of token data; see there."""

    seq_len: int | None = None
    reuse_last_target: bool | None = None
    block_size: int | None = None
    positions: bool = False
    boundaries: bool = False
    eos: int | None = None

    @property
    def given(self) -> list[str]:
        """Names of the options that differ from their defaults."""
        plain = WindowOptions()
        return [name for name in self.__slots__ if getattr(self, name) != getattr(plain, name)]


def windowed(dataset: Dataset, options: WindowOptions) -> Dataset:
    """Return the dataset's windows or blocks, or the dataset itself if no option is given.

    Raises:
        ConfigError: The dataset is not token data, or the options cannot be combined.
    """
    if not options.given:
        return dataset
    from feedmill.formats.tokens.base import TokenDataset  # most datasets are not of tokens
    from feedmill.formats.tokens.windows import BlockDataset, WindowDataset

    if not isinstance(dataset, TokenDataset) and (column := token_column(dataset)) is not None:
        from feedmill.formats.tokens.rows import TokenRows

        dataset = TokenRows(dataset, column)
    if not isinstance(dataset, TokenDataset):
        raise ConfigError(
            f"{', '.join(options.given)}: only token data can be read in windows or blocks, found the format"
            f" {dataset.format}",
            file=dataset.url,
            fix="Remove the option, or name its column of token ids with tokens=NAME.",
        )
    if (options.seq_len is None) == (options.block_size is None):
        raise ConfigError(
            f"expected either seq_len or block_size, found {', '.join(options.given)}",
            file=dataset.url,
            fix="Set exactly one of them.",
        )
    shown: dict[str, Any] = {name: getattr(options, name) for name in ("positions", "boundaries", "eos")}
    if options.block_size is not None:
        if options.reuse_last_target is not None:
            raise ConfigError(
                "reuse_last_target cannot be used with block_size: blocks share no token",
                file=dataset.url,
                fix="Remove reuse_last_target.",
            )
        return BlockDataset(dataset, block_size=options.block_size, **shown)
    assert options.seq_len is not None
    width, stride = _rule(dataset.format, options.seq_len, options.reuse_last_target)
    return WindowDataset(dataset, width=width, stride=stride, **shown)


def token_column(dataset: Dataset) -> str | None:
    """Return the column of token ids of a dataset of rows that names it as usual; None if it has none."""
    format = by_name().get(dataset.format)
    if format is None or (format.family != "rows" and format.name not in ("mds", "jsonl")):
        return None
    from feedmill.formats.tokens.rows import column_of

    return column_of(dataset)


def _rule(format: str, seq_len: int, reuse: bool | None) -> tuple[int, int]:
    """Return width and stride of the windows for `seq_len`, by the rule of the format's own reader."""
    known = by_name().get(format)
    if reuse is None and not (known is not None and known.reuses_target):
        return seq_len + 1, seq_len + 1  # datatrove: the last token of a window is never an input
    return (seq_len, seq_len) if reuse is False else (seq_len + 1, seq_len)
