"""Convert between tokens, samples and steps of a training run (Modalities: number conversion).

A step consumes ``ranks * micro_batch * accumulation`` samples of `sequence` tokens. Samples that do not fill a step are
not trained on, so all divisions round down to whole numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from feedmill.documents.file import kind_of
from feedmill.errors import ConfigError
from feedmill.jobs.options import verb
from feedmill.jobs.reports import VerbReport
from feedmill.storage import open_store, split_url
from feedmill.tokens.options import Numbers


class Step(NamedTuple):
    """Size of an optimizer step.

    Attributes:
        sequence: tokens per sample.
        ranks: data-parallel degree.
        micro_batch: samples per rank and forward pass.
        accumulation: forward passes per step.
    """

    sequence: int
    ranks: int
    micro_batch: int
    accumulation: int = 1

    @property
    def samples(self) -> int:
        """Samples per step, over all ranks."""
        return self.ranks * self.micro_batch * self.accumulation

    @property
    def tokens(self) -> int:
        """Tokens per step, over all ranks."""
        return self.samples * self.sequence


class Progress(NamedTuple):
    """Numbers in the name of a checkpoint folder; None for those it does not contain."""

    seen_steps: int | None
    seen_tokens: int | None
    target_steps: int | None
    target_tokens: int | None

    @property
    def last_step(self) -> int | None:
        """The number of the last step, counted from 0."""
        return None if self.seen_steps is None else self.seen_steps - 1


@dataclass(frozen=True, slots=True)
class NumbersReport(VerbReport):
    """Counts derived from one number.

    Attributes:
        counts: tokens, samples, batches and steps by name, or the numbers in a checkpoint's name; None if unknown.
    """

    counts: dict[str, int | None]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return dict(self.counts)


@verb(Numbers)
def numbers(options: Numbers) -> NumbersReport:
    """Exactly one source of the count is given: a number, a file or a checkpoint's name.

    Raises:
        ConfigError: not exactly one source is given, or tokens without a sequence length.
    """
    given = [options.tokens, options.samples, options.steps, options.data, options.lines, options.checkpoint]
    if sum(value is not None for value in given) != 1:
        raise ConfigError(
            "expected exactly one number to convert",
            kind="bad-option",
            fix="Pass one of --tokens, --samples, --steps, --data, --lines and --checkpoint.",
        )
    if options.checkpoint is not None:
        named = read_progress(options.checkpoint)
        counts = {**named._asdict(), "last_step": named.last_step}
        if None not in (named.seen_steps, named.seen_tokens, named.target_tokens):
            counts["target_steps"] = target_steps(named)
        return NumbersReport(counts)
    if options.lines is not None:
        options = replace(options, samples=count_lines(options.lines))
    step = Step(options.seq_len or 0, options.ranks, options.micro_batch, options.accumulation)
    return NumbersReport(_counted(step, options))


def _counted(step: Step, options: Numbers) -> dict[str, int | None]:
    """Return all counts that follow from one; those that need a sequence length are None without one."""
    tokens, samples, steps, data = options.tokens, options.samples, options.steps, options.data
    if step.sequence < 1 and (tokens is not None or data is not None):
        raise ConfigError("the sequence length is missing", kind="bad-option", fix="Add --seq-len N.")
    if data is not None:
        tokens = count_tokens(data)
        samples = windows(tokens, step.sequence, reuse_last_target=not options.own_targets)
    elif tokens is not None:
        samples = samples_from_tokens(tokens, step.sequence)
    elif steps is not None:
        samples = steps * step.samples
    samples = samples or 0
    whole = steps_from_samples(samples, *step[1:])
    return {
        "tokens": tokens,
        "samples": samples,
        "batches_per_rank": local_batches_from_samples(samples, step.ranks, step.micro_batch),
        "steps": whole,
        "samples_per_step": step.samples,
        "tokens_per_step": step.tokens or None,
        "trained_tokens": tokens_from_steps(whole, step) if step.sequence else None,
    }


def samples_from_tokens(tokens: int, sequence: int) -> int:
    """Return the number of whole samples in `tokens`.

    >>> samples_from_tokens(1000, 64)
    15
    """
    _positive(sequence=sequence)
    _from_zero(tokens=tokens)
    return tokens // sequence


def local_batches_from_samples(samples: int, ranks: int, micro_batch: int) -> int:
    """Return the number of micro batches per rank in the samples of all ranks."""
    _positive(ranks=ranks, micro_batch=micro_batch)
    _from_zero(samples=samples)
    return samples // (ranks * micro_batch)


def steps_from_samples(samples: int, ranks: int, micro_batch: int, accumulation: int = 1) -> int:
    """Return the number of whole steps in the samples of all ranks.

    >>> steps_from_samples(100, ranks=2, micro_batch=3, accumulation=2)
    8
    """
    _positive(ranks=ranks, micro_batch=micro_batch, accumulation=accumulation)
    _from_zero(samples=samples)
    return samples // (ranks * micro_batch * accumulation)


def tokens_from_steps(steps: int, step: Step) -> int:
    """Return the number of tokens of all ranks in the steps."""
    _positive(**step._asdict())
    _from_zero(steps=steps)
    return steps * step.tokens


def windows(tokens: int, sequence: int, *, reuse_last_target: bool = True) -> int:
    """Return the number of samples of Modalities' continuous dataset over a sequence of tokens.

    With `reuse_last_target`, a sample has ``sequence + 1`` tokens and shares its first token with the previous sample.
    Without it, a sample has `sequence` tokens and shares none.

    >>> windows(129, 64), windows(128, 64), windows(128, 64, reuse_last_target=False)
    (2, 1, 2)

    Raises:
        ConfigError: there are too few tokens for one sample, or samples would have one token.
    """
    block = sequence + reuse_last_target
    if block < 2 or tokens < block:
        raise ConfigError(
            f"{tokens} tokens are too few for a sample of {block} tokens",
            kind="empty-source",
            fix="Use shorter sequences (at least 2 tokens including the target), or more data.",
        )
    return (tokens - block) // (block - 1) + 1 if reuse_last_target else tokens // block


def trained_tokens(tokens: int, step: Step, *, reuse_last_target: bool = True) -> int:
    """Return the number of tokens that an epoch trains on, in whole steps. Raises as `windows`."""
    samples = windows(tokens, step.sequence, reuse_last_target=reuse_last_target)
    return tokens_from_steps(steps_from_samples(samples, *step[1:]), step)


def count_tokens(url: str) -> int:
    """Return the number of tokens of a token file or a folder of them, without reading its documents.

    Raises as opening it does, and `ConfigError` for lines of text.
    """
    from feedmill.tokens.corpus import LINES, open_sets

    sets = open_sets(url)
    if any(dataset.format == LINES for dataset in sets):
        raise ConfigError(
            "these are lines of text, not tokens",
            file=url,
            kind="no-tokens",
            fix="Count them as samples with --lines, or tokenize them with 'feedmill tokenize'.",
        )
    return sum(dataset.tokens for dataset in sets)


def count_lines(url: str) -> int:
    """Return the number of lines in a JSONL file or in Modalities' raw index (``.idx``).

    Raises as reading it does, and `ConfigError` for other documents, such as compressed ones.
    """
    folder, name = split_url(url)
    store = open_store(folder)
    if name.endswith(".jsonl"):
        from feedmill.tokens.corpus import open_lines

        return len(open_lines(store, name, url))
    if kind_of(name) is not None:
        raise ConfigError(
            "lines are counted in files whose names end in .jsonl, and in their indices",
            file=url,
            kind="unknown-format",
            fix="Unpack the file, or convert it to JSON lines.",
        )
    from feedmill.formats.tokens.pbin import load_pairs

    return len(
        load_pairs(
            store, name, 0, store.stat(name).size, fix="Write it again with 'feedmill tokens index FILE.jsonl'."
        )[0]
    )


def read_progress(path: str) -> Progress:
    """Parse the name of a checkpoint folder, such as ``...-seen_steps_10-seen_tokens_640-target_tokens_6400``.

    >>> read_progress("run/e-seen_steps_10-seen_tokens_640-target_steps_100-target_tokens_6400").last_step
    9

    Raises:
        ConfigError: it contains one of them twice, or none.
    """
    found = {word: _named(path, word) for word in Progress._fields}
    if not any(value is not None for value in found.values()):
        raise ConfigError(
            "the folder name contains no number of steps or tokens",
            file=path,
            kind="bad-option",
            fix=f"Pass a name with at least one of: {', '.join(word + '_N' for word in Progress._fields)}.",
        )
    return Progress(**found)


def target_steps(progress: Progress) -> int:
    """Return the steps of the whole run, from its target in tokens and the steps and tokens seen so far.

    Raises:
        ConfigError: numbers are missing, or steps were not of equal size.
    """
    if progress.seen_steps is None or progress.seen_tokens is None or progress.target_tokens is None:
        raise ConfigError(
            "the target in steps requires the steps seen, the tokens seen, and the target in tokens",
            kind="bad-option",
            fix="Pass a folder whose name has seen_steps_N, seen_tokens_N and target_tokens_N.",
        )
    if not progress.seen_steps or progress.seen_tokens % progress.seen_steps or not progress.seen_tokens:
        raise ConfigError(
            f"{progress.seen_tokens} tokens are not a whole number for each of {progress.seen_steps} steps",
            kind="bad-option",
            fix="The name was edited, or the batch size changed during the run.",
        )
    return progress.target_tokens // (progress.seen_tokens // progress.seen_steps)


def _named(path: str, word: str) -> int | None:
    found = re.findall(rf"{word}_(\d+)", path)
    if len(found) > 1:
        raise ConfigError(
            f"the name contains {word} {len(found)} times ({', '.join(found)})",
            file=path,
            kind="bad-option",
            fix="Pass the checkpoint's own folder.",
        )
    return int(found[0]) if found else None


def _positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ConfigError(f"{name} is {value}", kind="bad-option", fix="Pass 1 or more.")


def _from_zero(**values: int) -> None:
    for name, value in values.items():
        if value < 0:
            raise ConfigError(f"{name} is {value}", kind="bad-option", fix="Pass 0 or more.")
