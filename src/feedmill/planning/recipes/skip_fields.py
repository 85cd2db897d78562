"""The model of a recipe's skip list. Imported only when a recipe is read, as `fields`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from feedmill.planning.recipes.fields import Position, Strict


def skip_short(value: Any) -> Any:
    """Expand a position or a range to the mapping it abbreviates."""
    if isinstance(value, dict | SkipModel):
        return value
    bounds = value if isinstance(value, list | tuple) else [value, value + 1] if type(value) is int else []
    if len(bounds) == 2 and all(type(bound) is int and bound >= 0 for bound in bounds):
        return {"positions": tuple(bounds)}
    raise ValueError(
        "skip takes positions from 0, ranges [first, end), and mappings with 'source' and 'keys', or 'quarantine'"
    )


def _key_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class SkipModel(Strict):
    """One entry of a skip list: a range of positions, or samples of one source."""

    positions: tuple[Position, Position] | None = Field(
        default=None, description="[first, end) in the stream without a skip list; a single number, or the list alone"
    )
    source: str | None = Field(default=None, min_length=1, description="name of the samples' source")
    keys: list[Annotated[str, BeforeValidator(_key_text, json_schema_input_type=str | int)]] | None = Field(
        default=None, min_length=1, description="keys of samples"
    )
    indices: list[Position] | None = Field(default=None, min_length=1, description="numbers of samples in the source")
    quarantine: str | None = Field(default=None, min_length=1, description="file to which a loader wrote bad samples")
    since: Position | None = Field(
        default=None, description="keep the samples before this position (counted without a skip list)"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> SkipModel:
        if sum(given is not None for given in (self.positions, self.source, self.quarantine)) != 1:
            raise ValueError(
                "give a position, a range [first, end), a 'source' with 'keys' or 'indices', or a 'quarantine' file"
            )
        if self.positions is not None and self.positions[0] >= self.positions[1]:
            raise ValueError(f"the range [{self.positions[0]}, {self.positions[1]}) is empty; give [first, end)")
        if (self.source is None) != (self.keys is None and self.indices is None):
            raise ValueError("'keys' and 'indices' need a 'source', and a 'source' needs one of them")
        if self.positions is not None and self.since is not None:
            raise ValueError("'since' applies to samples only: remove it, or shorten the range of positions")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        """Return the JSON schema, which also allows a bare position or range."""
        number = {"type": "integer", "minimum": 0}
        both = {"type": "array", "items": number, "minItems": 2, "maxItems": 2}
        return {"anyOf": [number, both, handler(core)]}

    def __str__(self) -> str:
        if self.positions is not None:
            first, stop = self.positions
            return str(first) if stop == first + 1 else f"[{first}, {stop})"
        words = [*sorted(set(self.keys or ())), *(f"#{index}" for index in sorted(set(self.indices or ())))]
        return f"{self.source}: {' '.join(words)}" + (f" since {self.since}" if self.since else "")
