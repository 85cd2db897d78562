"""Token data: documents as runs of token ids in flat files, one module per on-disk format.

A format says where the tokens and the bounds of documents lie; `base.py` reads documents, `windows.py` windows of a
fixed length, and a plan packed rows, all by one gathering of ranges.

- Formats: `pbin.py` (with `raw_index.py`), `ds.py`, `megatron.py`,
  `dolma.py`, `flat_files.py`, `litdata.py`, `levanter.py` (`levanter_ledger.py`, and `zarr/`), `vla_text.py`, and
  `rows.py`: ids in the columns of any other format.
- `base.py`: documents of any format; `shard.py`: one file; `number_files.py`: files of plain numbers; `gather.py`: many
  ranges into an array; `masks.py`: loss masks.
- `windows.py`: windows, each a `window.py`; `shifted.py`: as inputs and targets;
  `ordered.py`: over documents in another order.
- `manifest.py`: what a file was made from, and the bounds of its documents.
"""

from feedmill.formats.format import TOKENS, Format, TargetFormat

_REPAIR = (
    "token files ({name}) cannot be repaired, only .tar shards and .jsonl files",
    "Inspect them with 'feedmill check'. Write corrupt files again with 'feedmill tokenize', or copy them"
    " again. (Wrong starts in a .pbin, which Modalities' merge writes, are corrected whenever it is read.)",
)
PBIN = Format(
    "pbin",
    "packed tokens (Modalities)",
    "tokens",
    open="feedmill.formats.tokens.pbin:open_found",
    files=(".pbin",),
    folders=(".pbin",),
    listed=(".pbin",),
    repair=_REPAIR,
    data=("tokens",),
    beside=(".json",),
    reuses_target=True,
    targets=(
        TargetFormat(
            "pbin",
            "a `.pbin` for each file of tokens",
            "",
            "tokens",
            TOKENS,
            writer="feedmill.formats.tokens.pbin:WRITER",
            ends=(".pbin", ".pbin.feedmill.bounds", ".pbin.feedmill.loss"),
            strip=(".pbin",),
            token_sizes=(1, 2, 4),
            keeps=("loss",),
            options=("token_size",),
        ),
    ),
)
DS = Format(
    "ds",
    "`.ds` tokens (Nanotron)",
    "tokens",
    open="feedmill.formats.tokens.ds:open_found",
    files=(".ds",),
    folders=(".ds",),
    listed=(".ds",),
    options=("files", "token_size"),
    repair=_REPAIR,
    data=("tokens",),
    beside=(".index", ".loss", ".metadata"),
    targets=(
        TargetFormat(
            "ds",
            "a `.ds` with index and metadata for each file",
            "",
            "tokens",
            TOKENS,
            writer="feedmill.formats.tokens.ds:WRITER",
            ends=(".ds", ".ds.index", ".ds.metadata", ".ds.loss"),
            strip=(".ds",),
            token_sizes=(2, 4),
            keeps=("loss",),
            options=("token_size",),
        ),
    ),
)
MEGATRON = Format(
    "megatron",
    "Megatron-LM's tokens",
    "tokens",
    open="feedmill.formats.tokens.megatron:open_found",
    files=(".bin", ".idx"),
    is_file="feedmill.formats.tokens.megatron:need_megatron",
    is_folder="feedmill.formats.tokens.megatron:mark",
    folders=(".bin",),
    listed=(".bin", ".idx"),
    repair=_REPAIR,
    data=("tokens",),
    beside=(".idx",),
    targets=(
        TargetFormat(
            "megatron",
            "`.bin` and `.idx` for each file",
            "",
            "tokens",
            TOKENS,
            writer="feedmill.formats.tokens.megatron:WRITER",
            ends=(".idx", ".bin", ".bin.feedmill.loss"),
            strip=(".idx", ".bin"),
            token_sizes=(2, 4),
            keeps=("loss",),
            options=("token_size",),
        ),
    ),
)
DOLMA = Format(
    "dolma",
    "Dolma's tokens",
    "tokens",
    open="feedmill.formats.tokens.dolma:open_found",
    files=(".npy",),
    folders=(".csv.gz",),
    listed=(".npy",),
    repair=_REPAIR,
    data=("tokens",),
    beside=(".npy", ".csv.gz"),
    targets=(
        TargetFormat(
            "dolma",
            "`.npy` and `.csv.gz` for each file",
            "",
            "tokens",
            TOKENS,
            writer="feedmill.formats.tokens.dolma:WRITER",
            ends=(".npy", ".csv.gz", ".npy.feedmill.loss"),
            strip=(".npy",),
            token_sizes=(1, 2, 4),
            keeps=("loss",),
            options=("token_size",),
        ),
    ),
)
FLAT = Format(
    "flat",
    "flat token files (nanoGPT, llm.c, OLMo-core, numpy)",
    "tokens",
    open="feedmill.formats.tokens.flat_files:open_found",
    files=(".bin", ".npy"),
    is_file="feedmill.formats.tokens.flat_files:is_flat",
    is_folder="feedmill.formats.tokens.flat_files:mark",
    folders=(".bin", ".npy"),
    listed=(".bin", ".npy"),
    options=("token_size",),
    repair=_REPAIR,
    data=("tokens",),
)
LITDATA = Format(
    "litdata",
    "LitData's token chunks",
    "tokens",
    open="feedmill.formats.tokens.litdata:open_found",
    marks=("index.json",),
    is_folder="feedmill.formats.tokens.litdata:mark",
    small=("index.json",),
    repair=_REPAIR,
    data=("tokens",),
    beside=("index.json",),
)
LEVANTER = Format(
    "levanter",
    "Levanter's cache",
    "tokens",
    open="feedmill.formats.tokens.levanter:open_found",
    later_marks=("shard_ledger.json",),
    is_folder="feedmill.formats.tokens.levanter_ledger:mark",
    repair=_REPAIR,
    data=("tokens",),
    beside=("shard_ledger.json", "shard_ledger.json.bak"),
    flat=False,
)
VLA_TEXT = Format(
    "vla-text",
    "VLA Foundry's tokenized text",
    "windows",
    targets=(
        TargetFormat(
            "vla-text",
            "tars of sequences and `manifest.jsonl`",
            "loss masks, ends of documents, the last tokens",
            "sequences",
            ("tokens",),
            ends=("/manifest.jsonl",),
            token_sizes=(1, 2, 4),
            options=("seq_len", "token_size"),
        ),
    ),
)
FORMATS = (PBIN, DS, FLAT, MEGATRON, DOLMA, LITDATA, LEVANTER, VLA_TEXT)
