"""Dolma's resharding of token files by source and rate: ``python -m dolma.tokenizer.reshard FILE``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedmill.tokens.verbs.resample import ResampleReport

__all__ = ["ReshardingConfig", "ReshardingPrefixConfig", "main", "reshard"]


@dataclass
class ReshardingPrefixConfig:
    """Folder of token files, and how often each file is taken."""

    prefix: str
    sample_rate: float

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> ReshardingPrefixConfig:
        """Make it from an entry of ``source_prefixes``."""
        return cls(**d)

    def to_dict(self) -> dict[str, Any]:
        """Return it as an entry of ``source_prefixes``."""
        return {"prefix": str(self.prefix), "sample_rate": self.sample_rate}


@dataclass
class ReshardingConfig:
    """Configuration of `reshard`. `local_tempdir` and `tokenizer_name_or_path` have no effect.

    Raises:
        ValueError: not exactly one of `max_size_bytes` and `max_num_files` is given.
    """

    source_prefixes: list[ReshardingPrefixConfig]
    destination_prefix: str
    local_tempdir: str | None = None
    max_size_bytes: int | None = None
    max_num_files: int | None = None
    max_workers: int | None = None
    random_seed: int = 42
    tokenizer_name_or_path: str | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if (self.max_size_bytes is None) == (self.max_num_files is None):
            raise ValueError("exactly one of max_size_bytes and max_num_files must be given")

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> ReshardingConfig:
        """Make it from the content of a configuration file. Other keys are ignored, as in Dolma."""
        known = {field.name: d[field.name] for field in fields(cls) if field.name in d}
        sources = [ReshardingPrefixConfig.from_dict(entry) for entry in d.get("source_prefixes", ())]
        return cls(**{**known, "source_prefixes": sources})

    @classmethod
    def from_file(cls, file_path: str) -> ReshardingConfig:
        """Read a YAML or JSON file."""
        from feedmill.compat.dolma.config import configure
        from feedmill.compat.dolma.reshard import SCHEMA

        return cls.from_dict(configure((), str(file_path), SCHEMA))

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a configuration file."""
        return {**asdict(self), "source_prefixes": [source.to_dict() for source in self.source_prefixes]}


def reshard(config: ReshardingConfig) -> ResampleReport:
    """Sample and distribute token files. Raises the errors of `feedmill.tokens.verbs.resample.resample`."""
    from feedmill.compat.dolma.reshard import run

    return run(config.to_dict())


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command ``reshard`` with the configuration file that the first argument names."""
    from feedmill.cli.app import main as app

    words = list(sys.argv[1:] if argv is None else argv)
    sys.argv[1:] = [
        *("compat", "dolma"),
        *(["-c", words.pop(0)] if words and not words[0].startswith("-") else []),
        "reshard",
        *words,
    ]
    app()


if __name__ == "__main__":
    main()
