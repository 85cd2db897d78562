"""Windows of tokens into inputs and targets, and the loss mask between two markers: Modalities' collators.

Give `with_targets` to the loader as its `collate`; with a mask as ``functools.partial(with_targets, mask=...)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError

Tokens = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class LossMask:
    """Keeps those targets that lie between a begin and an end marker, and hides all others from the loss.

    The markers themselves are hidden. A last begin without an end holds to the end of the row. In a row without any
    begin, or without any end, everything is hidden. Each row is judged alone: Modalities looks for the markers in the
    whole batch, so that what a row teaches depends on the rows beside it; for a batch of one row the two agree.

    Args:
        begin, end: ids of the markers.
        ignore: what hidden targets become.

    Raises:
        ConfigError: both markers are the same.

    >>> LossMask(begin=1, end=2)(np.array([[9, 1, 8, 7, 2, 9]])).tolist()
    [[-100, -100, 8, 7, -100, -100]]
    """

    begin: int
    end: int
    ignore: int = -100

    def __post_init__(self) -> None:
        if self.begin == self.end:
            raise ConfigError(
                f"the begin and the end marker are both {self.begin}", fix="Give two different ids.", kind="bad-markers"
            )

    def __call__(self, targets: Tokens) -> npt.NDArray[np.int64]:
        """The targets with all others hidden, a new int64[n, width].

        Args:
            targets: integers[n, width].

        Raises:
            DataError: a row has an end before its begin, or a begin inside of a begin; names the row and the place.
        """
        begins, ends = targets == self.begin, targets == self.end
        usable = begins.any(axis=1) & ends.any(axis=1)
        inside = np.cumsum(begins.astype(np.int8) - ends.astype(np.int8), axis=1, dtype=np.int64)
        wrong = np.argwhere(usable[:, None] & ((inside < 0) | (inside > 1)))
        if len(wrong):
            row, place = wrong[0].tolist()
            what = "an end marker comes before its begin" if inside[row, place] < 0 else "a second begin marker follows"
            raise DataError(
                f"row {row} of the batch: {what}, at target {place}",
                kind="bad-markers",
                fix="Mend the sample, or check the marker ids.",
            )
        kept = usable[:, None] & (inside == 1) & ~begins
        return np.where(kept, targets, np.int64(self.ignore)).astype(np.int64, copy=False)


def with_targets(
    samples: Sequence[Mapping[str, Any]],
    *,
    key: str = "input_ids",
    inputs: str = "inputs",
    targets: str = "targets",
    mask: LossMask | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """A batch of inputs and targets: all tokens but the last, and all but the first.

    Args:
        samples: windows of one length, w.
        key: the field that has their tokens.
        inputs, targets: names in the batch.
        mask: hides targets from the loss.

    Returns:
        Two arrays [n, w - 1]: views of one batch, unless there is a mask.

    Raises:
        DataError: the windows have different lengths, or fewer than 2 tokens; or as `LossMask` does.

    >>> batch = with_targets([{"input_ids": np.array([5, 6, 7])}])
    >>> batch["inputs"].tolist(), batch["targets"].tolist()
    ([[5, 6]], [[6, 7]])
    """
    rows = [sample[key] for sample in samples]
    widths = sorted({len(row) for row in rows})
    if len(widths) != 1 or widths[0] < 2:
        raise DataError(
            f"the windows of a batch have to be of one length, 2 or more; these have {widths} tokens",
            kind="bad-windows",
            fix="Open token data with seq_len=... .",
        )
    batch = np.stack(rows)
    shifted = batch[:, 1:]
    return {inputs: batch[:, :-1], targets: shifted if mask is None else mask(shifted)}
