"""`feedmill.open`: open any dataset, with decoded parts and samples of the declared type."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from feedmill.allocator import keep_freed_memory
from feedmill.errors import ConfigError, NotFound, suggesting
from feedmill.formats.base import Dataset
from feedmill.formats.energon import ENERGON
from feedmill.formats.energon.database import META
from feedmill.formats.energon.sidecar import meta_file
from feedmill.formats.format import TRAIN_OR_ALL, Detected
from feedmill.formats.registry import by_name
from feedmill.formats.sample import Decode
from feedmill.formats.sniff import open_found, open_together, sniff
from feedmill.samples.decode import Decoder, decoder_of
from feedmill.storage import Store, join_url

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from feedmill.formats.sample import AnySample
    from feedmill.samples.robotics.episodes import EpisodeOptions
    from feedmill.samples.tokenized import Encoder, TokenizeOptions
    from feedmill.samples.view import DatasetView

    Read = TypeVar("Read", default=AnySample)

logger = logging.getLogger("feedmill")
_keep_freed_memory = cache(keep_freed_memory)
_DEFAULT = Decoder()


@suggesting(
    delta_timestamps="did you mean 'windows'? windows={'action': [0, 15]} counts frames, floats are seconds.",
    image_transforms="fm.Loader(..., transform=function) takes a transform, and decode='torchrgb' makes tensors.",
    streaming="datasets are read in place, from URLs too.",
    shuffle="a plan has the order: fm.Plan.over(dataset, shuffle='global').",
    batch_size="fm.Loader(dataset, batch_size) makes batches.",
    data_files="name the files as the first argument.",
    data_dir="name the folder as the first argument.",
    trust_remote_code="did you mean 'trust'?",
)
def open(
    url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    split: str | None = None,
    dataset_config: str | None = None,
    split_config: str | None = None,
    decode: Decode | Mapping[str, Any] | str | None = _DEFAULT,
    raw: bool = False,
    trust: bool = False,
    seq_len: int | None = None,
    reuse_last_target: bool | None = None,
    block_size: int | None = None,
    positions: bool = False,
    boundaries: bool = False,
    eos: int | None = None,
    files: str | None = None,
    token_size: int | None = None,
    tokens: str | None = None,
    tokenize: Encoder | TokenizeOptions | Mapping[str, Any] | str | None = None,
    windows: Mapping[str, Sequence[float]] | None = None,
    steps: str | None = None,
    episodes: EpisodeOptions | Mapping[str, Any] | None = None,
) -> Dataset[Read]:
    """Open a dataset in any known format.

    Args:
        url: a folder of tar shards (prepared or not, or with a ``manifest.jsonl``), ``.pbin`` or ``.ds`` files; a
            ``.tar``, ``.jsonl``, ``.pbin`` or ``.ds`` file, a manifest, a ``.bin`` or ``.idx`` of Megatron-LM, a
            ``.npy`` of Dolma; flat ``.bin`` and ``.npy`` of other tools, a folder of LitData's token chunks;
            a cache of Levanter; ``.parquet`` and ``.arrow`` files; a dataset of Hugging Face, LeRobot, MosaicML or
            img2dataset; a path or URL. Patterns (``{000..099}``, ``*``) and lists of ``.tar``, ``.parquet`` or token
            files of one format (``.pbin``, ``.ds``, ``.bin``, ``.npy``) are opened as one dataset.
        split: name of a split; None or ``*`` opens everything except excluded shards and samples. A folder of files
            in a format without splits has those that a ``README.md`` of the Hub or their names tell, as Hugging Face's
            ``load_dataset`` finds them (``train-00000-of-00002.parquet``, ``test/0.tar``, ``fr/train``).
        dataset_config: description in ``.nv-meta`` to use instead of ``dataset.yaml``, or manifest to use instead of
            ``manifest.jsonl``.
        split_config: split file in ``.nv-meta`` to use instead of ``split.yaml``.
        decode: decoder of parts, see `Decoder` and `SampleDecoder`; or what a recipe takes: an image spec such as
            ``"torchrgb8"``, or options of `Decoder` as a mapping; None or ``"bytes"`` returns bytes.
        raw: ignore the description and return samples as mappings of parts.
        trust: allow code that the dataset names (``sample_loader.py``, pickles) to run.
        seq_len: split token data into windows of this length, by the rule of each format's own reader.
        reuse_last_target: True for windows of ``seq_len + 1`` tokens that share one token with the next window (the
            default of Modalities), False for windows of ``seq_len`` tokens that share none.
        block_size: split token data into blocks of this length, each of which starts with a document.
        positions: add the field ``positions``: position of each token in its document, from 0.
        boundaries: add the field ``boundaries``: offsets of documents in the window, with 0 and its length.
        eos: id that ends a document, for positions and boundaries; default: boundaries come from the index.
        files: order of a folder of ``.ds`` files: ``sorted`` by path, recursively (the default); ``flat``: only the
            files directly in the folder; ``nanotron``: these, permuted as Nanotron does; ``nanotron:SEED``.
        token_size: bytes per token of ``.ds`` files without metadata, and of flat token files without a header; with
            `tokens`, bytes per id of a column of bytes (default: 8).
        tokens: column of token ids in rows (Parquet, Arrow, JSONL, MDS): open the rows as documents of tokens. For
            windows, a column ``input_ids`` or ``tokens`` is found without it.
        tokenize: tokenize text when it is read: a `TokenizeTransform`, its options as a mapping, or a tokenizer.
        windows: frames of robot episodes around each sample, by column or camera: the first and the last one as whole
            numbers, ``{"action": [0, 15]}``, or offsets in seconds as LeRobot's ``delta_timestamps``,
            ``{"observation.images.top": [-0.2, 0.0]}``. A part becomes an array ``[k, ...]``; ``NAME_is_pad``, bool[k],
            says which frames lie outside the episode: they repeat its first or last one.
        steps: the topic of MCAP recordings whose messages are the time steps.
        episodes: frames of robot episodes with common names, rates and shapes, as ``episodes`` of a recipe:
            ``{"rename": {...}, "fps": 10, "windows": {...}, "sizes": {"action": 32}}``, see docs/formats/lerobot.md.
            Features of ``normalize`` are normalized by a plan alone, which knows their statistics.

    Raises:
        NotFound: the path, split or file does not exist.
        DataError: an index or shard is corrupt.
        ConfigError: a description is invalid.
        TrustError: the dataset requires running code and `trust` is False.
    """
    decode = Decoder(trust=True) if trust and decode is _DEFAULT else decoder_of(decode, trust=trust)
    urls = os.fspath(url) if isinstance(url, str | os.PathLike) else [os.fspath(one) for one in url]
    dataset = _open(
        urls,
        OpenOptions(
            split=split,
            dataset_config=dataset_config,
            split_config=split_config,
            decode=decode,
            raw=raw,
            trust=trust,
            files=files,
            token_size=token_size,
            tokens=tokens,
            tokenize=None if tokenize is None else _encoder_of(tokenize),
            frames=windows,
            steps=steps,
            episodes=None if episodes is None else _episodes_of(episodes),
            windows=WindowOptions(
                seq_len=seq_len,
                reuse_last_target=reuse_last_target,
                block_size=block_size,
                positions=positions,
                boundaries=boundaries,
                eos=eos,
            ),
        ),
    )
    for remark in (*dataset.notes, *dataset.remarks):  # not in `_open`, which worker processes call
        logger.warning("%s", remark)
    return dataset


class WindowOptions(NamedTuple):
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
        return [name for name in self._fields if getattr(self, name) != getattr(_NO_WINDOWS, name)]


_NO_WINDOWS = WindowOptions()


class OpenOptions(NamedTuple):
    """Options of `open`; see there."""

    split: str | None = None
    dataset_config: str | None = None
    split_config: str | None = None
    decode: Decode | None = _DEFAULT
    raw: bool = False
    trust: bool = False
    files: str | None = None
    token_size: int | None = None
    tokens: str | None = None
    tokenize: Encoder | None = None
    frames: Mapping[str, Sequence[float]] | None = None
    steps: str | None = None
    episodes: EpisodeOptions | None = None
    windows: WindowOptions = _NO_WINDOWS


def _open(url: str | list[str], options: OpenOptions) -> Dataset:
    """Return the dataset. Other processes can open it with the same arguments."""
    _keep_freed_memory()
    absolute = _absolute(url) if isinstance(url, str) else [_absolute(one) for one in url]
    reopen = partial(_open, absolute, options)
    token_size = options.token_size if options.tokens is None else None
    if not isinstance(url, str):
        dataset = _as_tokens(open_together(url, files=options.files, token_size=token_size), options)
        return _cut(dataset, options).opened_as(decode=options.decode, reopen=reopen)
    split, split_config = options.split, options.split_config
    if options.dataset_config is not None and options.dataset_config.endswith(".jsonl"):
        url, options = join_url(url, options.dataset_config), options._replace(dataset_config=None)
    detected = sniff(url)
    whole = options.raw or options.tokenize is not None
    description = None if whole else _describe(detected, url, options)
    if description is not None:
        split = description.arguments.get("split_part", split)
        split_config = description.arguments.get("split_config", split_config)
    dataset = open_found(
        detected, url, split=split, split_config=split_config, files=options.files, token_size=token_size
    )
    if options.split == TRAIN_OR_ALL:
        reopen = partial(_open, absolute, options._replace(split=dataset.split))
    cut = _cut(_as_tokens(dataset, options), options)  # one with a description is not token data: an error
    if description is None:
        cut.notes = dataset.notes
        return cut.opened_as(decode=options.decode, reopen=reopen)
    return dataset.opened_as(
        view=description.view,
        decode=description.decode,
        subflavors=description.subflavors,
        about=description.about,
        order=description.order,
        reopen=reopen,
    )


def _cut(dataset: Dataset, options: OpenOptions) -> Dataset:
    """Return the windows of token data or of robot episodes, or text as token data."""
    if options.steps is not None:
        dataset = _with_steps(dataset, options.steps)
    if options.frames is not None or options.episodes is not None:
        return _with_frames(dataset, options.frames, options.episodes)
    if options.tokenize is None:
        return windowed(dataset, options.windows)
    if options.windows.given:
        raise ConfigError(
            f"{', '.join(options.windows.given)}: text that is tokenized when it is read has no windows of its own",
            file=dataset.url,
            fix="Use 'pack' with 'method: concat' in the recipe.",
        )
    from feedmill.samples.tokenized import tokenized

    return tokenized(dataset, options.tokenize)


def _encoder_of(given: Encoder | TokenizeOptions | Mapping[str, Any] | str) -> Encoder:
    from feedmill.samples.tokenized import encoder_of

    return encoder_of(given)


def _with_steps(dataset: Dataset, topic: str) -> Dataset:
    """Return recordings with the messages of a topic as steps. Raises `ConfigError`."""
    from feedmill.formats.recorders.mcap import McapDataset  # most datasets are others

    if not isinstance(dataset, McapDataset):
        raise ConfigError(
            f"steps: {topic!r} is a topic of MCAP recordings, found the format {dataset.format}",
            file=dataset.url,
            kind="bad-option",
            fix="Remove it.",
        )
    return dataset.stepped(topic)


def _episodes_of(given: EpisodeOptions | Mapping[str, Any]) -> EpisodeOptions:
    from feedmill.samples.robotics.episodes import EpisodeOptions

    return EpisodeOptions.of(given)


def _with_frames(
    dataset: Dataset, windows: Mapping[str, Sequence[float]] | None, episodes: EpisodeOptions | None
) -> Dataset:
    """Return robot episodes with windows of frames, or as samples of a common shape. Raises `ConfigError`."""
    if windows is not None and episodes is not None:
        raise ConfigError("'windows' and 'episodes' cannot be combined", fix="Move the windows into 'episodes'.")
    from feedmill.formats.episodes import Episodic  # most datasets are others

    if not isinstance(dataset, Episodic):
        asked = f"windows of frames ({', '.join(windows)})" if windows is not None else "samples of episodes"
        raise ConfigError(
            f"{asked} are cut from robot episodes, found the format {dataset.format}",
            file=dataset.url,
            fix="Remove 'windows', or use 'seq_len' for windows of tokens.",
        )
    if episodes is None:
        return dataset.windowed(windows or {})
    from feedmill.samples.robotics.episodes import EpisodeSamples

    return EpisodeSamples(dataset, episodes)


def _as_tokens(dataset: Dataset, options: OpenOptions) -> Dataset:
    """Return the rows of a dataset as documents of tokens, if the options name their column."""
    if options.tokens is None:
        return dataset
    from feedmill.formats.tokens.base import TokenDataset
    from feedmill.formats.tokens.rows import TokenRows

    if isinstance(dataset, TokenDataset):
        raise ConfigError(
            f"tokens={options.tokens!r} is for rows with a column of ids, this is token data already",
            file=dataset.url,
            fix="Remove it.",
        )
    return TokenRows(dataset, options.tokens, options.token_size)


def _absolute(url: str) -> str:
    return url if "://" in url else os.path.abspath(url)


def _describe(found: Detected, url: str, options: OpenOptions) -> DatasetView | None:
    """Return the content of the description file; None if there is none."""
    name = options.dataset_config
    if found.format is not ENERGON and name is not None:
        raise ConfigError(
            f"the dataset has no description {name!r}: only prepared folders have one",
            file=url,
            fix="Omit 'dataset_config'.",
        )
    if found.format is not ENERGON:
        return None
    path = f"{META}/dataset.yaml" if name is None else meta_file(found.store, name)
    try:
        text = found.store.read_small(path)
    except NotFound:
        if name is not None:
            raise
        return None
    from feedmill.formats import yamls

    document = yamls.read_config(text, found.store.locate(path))
    from feedmill.samples.view import build_view

    return build_view(
        document,
        decoder=options.decode,
        read_meta=_meta_reader(found.store),
        where=document.where,
        trust=options.trust,
    )


def _meta_reader(store: Store) -> Callable[[str], bytes]:
    return lambda name: store.read(f"{META}/{name}")


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
    if format is None or (format.family not in ("rows", "lines") and format.name != "mds"):
        return None
    from feedmill.formats.tokens.rows import column_of

    return column_of(dataset)


def _rule(format: str, seq_len: int, reuse: bool | None) -> tuple[int, int]:
    """Return width and stride of the windows for `seq_len`, by the rule of the format's own reader."""
    known = by_name().get(format)
    if reuse is None and not (known is not None and known.reuses_target):
        return seq_len + 1, seq_len + 1  # datatrove: the last token of a window is never an input
    return (seq_len, seq_len) if reuse is False else (seq_len + 1, seq_len)
