"""Names of the ways of packing, for signatures and recipes."""

from typing import Literal

Method = Literal["best_fit", "concat"]
Last = Literal["drop", "keep", "pad"]
Long = Literal["split", "truncate", "drop"]
