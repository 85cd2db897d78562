"""The pydantic model of a recipe's `order`. Imported only when a recipe is read, because importing pydantic is slow."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, model_validator

from feedmill.planning.recipes.fields import Count, Position, Strict, short

_ALLOWED = {
    "nanoset": (),
    "blendable": (),
    "modalities": ("ranks", "shuffle", "epoch", "drop_last", "skip", "batch_size"),
    "megatron": (
        "seq_len",
        "split",
        "part",
        "extra_token",
        "drop_last_partial",
        "pad",
        "surplus",
        "cache",
        "positions",
        "boundaries",
    ),
}
"""The options of each order."""


class OrderModel(Strict):
    """The order of another tool instead of Feedmill's own, with the recipe's seed as that tool's seed."""

    kind: Literal["nanoset", "blendable", "modalities", "megatron"] = Field(description="see docs/compatible_orders.md")
    ranks: Count | None = Field(None, description="modalities: num_replicas")
    shuffle: bool = Field(False, strict=True, description="modalities: as in its sampler")
    epoch: int = Field(0, strict=True, description="modalities: the sampler's first epoch")
    drop_last: bool = Field(True, strict=True, description="modalities: drop the incomplete end instead of padding it")
    skip: int = Field(0, ge=0, strict=True, description="modalities: skip_num_global_samples")
    batch_size: Count | None = Field(None, description="modalities: samples per rank and step, to match ranks too")
    seq_len: Annotated[int, Field(ge=2, lt=2**31 - 1, strict=True)] | None = Field(
        default=None, description="megatron: --seq-length"
    )
    split: str | None = Field(
        default=None, description="megatron: --split, such as 969,30,1; omit it for data files of one split"
    )
    part: Literal["train", "valid", "test"] = Field("train", description="megatron: the split to read")
    extra_token: StrictBool = Field(True, description="megatron: add_extra_token_to_sequence")
    drop_last_partial: StrictBool = Field(
        default=True, description="megatron: drop_last_partial_validation_sequence, for the part 'valid'"
    )
    pad: Position = Field(default=0, description="megatron: id of the padding of an incomplete sample")
    surplus: Annotated[StrictFloat | StrictInt, Field(ge=0, le=100)] = Field(
        default=0.005, description="megatron: mid_level_dataset_surplus"
    )
    cache: str | None = Field(
        default=None, min_length=1, description="megatron: --data-cache-path, whose indices are read if they are there"
    )
    positions: StrictBool = Field(False, description="megatron: also return each token's position in its document")
    boundaries: StrictBool = Field(False, description="megatron: also return the bounds of documents in a sample")

    @model_validator(mode="after")
    def _fits_together(self) -> OrderModel:
        wrong = sorted(self.model_fields_set - {"kind", *_ALLOWED[self.kind]})
        if wrong and not _ALLOWED[self.kind]:
            raise ValueError(f"the order {self.kind!r} has no options other than the recipe's 'seed' and weights")
        if wrong:
            raise ValueError(
                f"the order {self.kind!r} has no option {wrong[0]!r}: its options are {', '.join(_ALLOWED[self.kind])}"
            )
        if self.kind == "modalities" and self.ranks is None:
            raise ValueError("the order 'modalities' needs 'ranks': give the number of ranks of the run")
        if self.kind == "megatron" and self.seq_len is None:
            raise ValueError("the order 'megatron' needs 'seq_len': give the run's --seq-length")
        return self


OrderField = Annotated[
    OrderModel, BeforeValidator(short("kind"), json_schema_input_type=OrderModel | Literal["nanoset", "blendable"])
]
