"""Loss masks beside token files of every format: in samples, windows and packed rows, carried by verbs."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedmill as fm
from feedmill.converting.convert import convert
from feedmill.errors import ConfigError, DataError
from feedmill.formats.tokens.base import Form
from feedmill.formats.tokens.masks import Masks
from feedmill.formats.tokens.ordered import OrderedWindows
from feedmill.formats.tokens.windows import BlockDataset, WindowDataset
from feedmill.tokens.outputs import write_documents

ENDS = {"pbin": ".pbin", "ds": ".ds", "megatron": ".bin", "dolma": ".npy"}
MAIN = {**ENDS, "megatron": ".idx"}
MASK = {
    "pbin": ".pbin.feedmill.loss",
    "ds": ".ds.loss",
    "megatron": ".bin.feedmill.loss",
    "dolma": ".npy.feedmill.loss",
}


def write(
    folder: Path, stem: str, format: str, lengths: list[int], seed: int = 0, loss: bool = True
) -> list[np.ndarray]:
    """Write documents of random tokens with a random mask, and return the mask of each."""
    random = np.random.default_rng(seed)
    tokens, mask = random.integers(3, 60_000, sum(lengths)), random.random(sum(lengths)) < 0.5
    with write_documents(fm.open_store(folder), stem + MAIN[format], Form(format, 2, "t", loss)) as out:
        half = len(lengths) // 2
        cut = sum(lengths[:half])
        out.add(tokens[:cut], np.array(lengths[:half], np.int64), mask[:cut] if loss else None)
        out.add(tokens[cut:], np.array(lengths[half:], np.int64), mask[cut:] if loss else None)
    return np.split(mask if loss else np.ones(sum(lengths), bool), np.cumsum(lengths)[:-1])


def opened(folder: Path, stem: str, format: str, **options) -> fm.Dataset:
    return fm.open(folder / (stem + ENDS[format]), **options)


@pytest.mark.parametrize("format", ENDS)
def test_samples_windows_and_rows_have_the_mask_of_each_token(format: str, tmp_path: Path) -> None:
    lengths = [5, 1, 12, 3, 30, 2]
    masks = write(tmp_path, "x", format, lengths)
    assert np.fromfile(tmp_path / f"x{MASK[format]}", np.uint8).tolist() == np.concatenate(masks).tolist()
    documents = opened(tmp_path, "x", format)
    assert isinstance(documents, fm.tokens.TokenDataset)
    for number, sample in enumerate(documents.read(range(len(lengths)))):
        assert list(sample) == ["input_ids", "loss_mask"] and len(sample["input_ids"]) == lengths[number]
        assert sample["loss_mask"].dtype == bool and sample["loss_mask"].tolist() == masks[number].tolist()
        assert sample.raw("input_ids") == sample["input_ids"].astype("<u2").tobytes()
    flat = np.concatenate(masks)
    windows = fm.tokens.WindowDataset(documents, width=7, stride=5, tail="pad", pad=0)
    for number, window in enumerate(windows.read(range(len(windows)))):
        part = flat[number * 5 : number * 5 + 7]
        assert window["loss_mask"].tolist() == [*part.tolist(), *[False] * (7 - len(part))]
    columns = windows.read_batch([3, 0], "columns")
    assert columns["loss_mask"].tolist() == [flat[15:22].tolist(), flat[:7].tolist()]
    plan = fm.tokens.PackedPlan(
        fm.Plan.over(documents, shuffle="none", epochs=1), fm.tokens.Packing(16), cache=tmp_path / "cache"
    )
    spans = plan.spans(range(len(plan)))
    for number, row in enumerate(plan.read(range(len(plan)))):
        wanted: list[bool] = []
        for span in range(int(spans.row_offsets[number]), int(spans.row_offsets[number + 1])):
            position, start, length = (int(x[span]) for x in (spans.position, spans.start, spans.length))
            wanted += masks[position][start : start + length].tolist()
        assert row["loss_mask"].tolist() == [*wanted, *[False] * (16 - len(wanted))]


@pytest.mark.parametrize("format", ENDS)
def test_verbs_keep_the_mask_in_every_format(format: str, tmp_path: Path) -> None:
    lengths = [5, 1, 12, 3, 30, 2]
    masks = write(tmp_path, "x", format, lengths)
    source = tmp_path / f"x{ENDS[format]}"
    known = {document["input_ids"].tobytes(): mask for document, mask in zip(fm.open(source), masks, strict=True)}
    for to, end in ENDS.items():
        if to == "dolma":
            convert(source, tmp_path / "out" / to, to, allow_loss=True)
            found = [fm.open(path) for path in (tmp_path / "out" / to).glob(f"*{end}")]
        else:
            fm.tokens.merge([source], tmp_path / f"m{end}")
            fm.tokens.shuffle([source], tmp_path / f"s{end}", seed=1)
            fm.tokens.split([source], tmp_path / f"p_{{part}}{end}", chunks=2)
            fm.filter([source], tmp_path / f"f{end}", min_length=3)
            found = [fm.open(tmp_path / f"{name}{end}") for name in ("m", "s", "p_00000", "p_00001", "f")]
        for dataset in found:
            assert dataset.loss_mask() is not None
            for document in dataset:
                assert document["loss_mask"].tolist() == known[document["input_ids"].tobytes()].tolist()
        assert not fm.check(found[0].url).findings


def test_drop_loss_drops_it_and_a_sequence_format_refuses_it_by_name(tmp_path: Path) -> None:
    write(tmp_path, "x", "pbin", [5, 60])
    fm.tokens.merge([tmp_path / "x.pbin"], tmp_path / "y.pbin", drop_loss=True)
    assert not (tmp_path / "y.pbin.feedmill.loss").exists() and "loss_mask" not in fm.open(tmp_path / "y.pbin")[0]
    with pytest.raises(ConfigError, match="the loss masks of tokens"):
        convert(tmp_path / "x.pbin", tmp_path / "v", "vla-text", seq_len=8)


def test_markers_make_a_mask_in_every_format(tmp_path: Path) -> None:
    with write_documents(fm.open_store(tmp_path), "x.pbin", Form("pbin", 2)) as out:
        out.add(np.array([5, 1, 6, 7, 2, 5, 1, 8]), np.array([5, 3]))
    for end in (".pbin", ".ds", ".bin"):
        fm.tokens.merge([tmp_path / "x.pbin"], tmp_path / f"y{end}", learn_between=(1, 2))
        found = [document["loss_mask"].tolist() for document in fm.open(tmp_path / f"y{end}")]
        assert found == [[False, False, True, True, False], [False, False, True]]


@pytest.mark.parametrize("format", ENDS)
def test_an_older_mask_never_belongs_to_newer_tokens(format: str, tmp_path: Path) -> None:
    write(tmp_path, "x", format, [4, 4])
    before = opened(tmp_path, "x", format).fingerprint()
    write(tmp_path, "x", format, [4, 4], loss=False)
    assert not (tmp_path / f"x{MASK[format]}").exists()
    assert "loss_mask" not in opened(tmp_path, "x", format)[0]
    assert opened(tmp_path, "x", format).fingerprint() != before
    with (
        pytest.raises(ConfigError, match="written without one"),
        write_documents(fm.open_store(tmp_path), "y" + MAIN[format], Form(format, 2)) as out,
    ):
        out.add(np.array([1, 2]), np.array([2]), np.array([True, False]))


@pytest.mark.parametrize("format", ["pbin", "megatron", "dolma"])
def test_a_mask_of_another_file_is_an_error(format: str, tmp_path: Path) -> None:
    write(tmp_path, "x", format, [4, 4])
    mask = tmp_path / f"x{MASK[format]}"
    mask.write_bytes(mask.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"the loss mask has 7 bytes for 8 tokens"):
        opened(tmp_path, "x", format)


def test_files_without_a_mask_contribute_in_full_beside_others(tmp_path: Path) -> None:
    masks = write(tmp_path, "a", "pbin", [4, 9])
    write(tmp_path, "b", "pbin", [6], seed=1, loss=False)
    together = fm.open([tmp_path / "a.pbin", tmp_path / "b.pbin"])
    assert [d["loss_mask"].tolist() for d in together] == [*(m.tolist() for m in masks), [True] * 6]
    windows = fm.tokens.WindowDataset(together, width=5, across=True)
    flat = [*np.concatenate(masks).tolist(), *[True] * 6]
    assert [w["loss_mask"].tolist() for w in windows.read(range(3))] == [flat[at : at + 5] for at in (0, 5, 10)]
    assert together.loss_mask() == {"files": 1, "tokens_in_loss": int(np.sum(flat))}


def test_batches_of_a_loader_ignore_what_the_mask_excludes(tmp_path: Path) -> None:
    masks = write(tmp_path, "x", "pbin", [5, 1, 12, 3, 30, 2])
    flat, tokens = np.concatenate(masks), np.concatenate([d["input_ids"] for d in fm.open(tmp_path / "x.pbin")])
    recipe = f"source: {{path: {tmp_path}/x.pbin, windows: {{seq_len: 8}}}}\nepochs: 1\nshuffle: none\n"
    for workers in (0, 2):
        with contextlib.closing(
            fm.Loader(
                fm.Recipe.parse(recipe).plan(), 2, rank=0, world_size=1, collate=fm.tokens.Targets(), workers=workers
            )
        ) as loader:
            found = np.concatenate([batch["targets"] for batch in loader]).reshape(-1)
        count = len(found)
        assert found.tolist() == np.where(flat, tokens, -100)[1 : count + 1].tolist()


@given(
    lengths=st.lists(st.integers(0, 40), min_size=2, max_size=9).filter(lambda row: sum(row) > 3),
    width=st.integers(2, 20),
    masked=st.booleans(),
    method=st.sampled_from(["best_fit", "concat", "windows"]),
)
def test_columns_give_the_batch_of_the_rows(
    lengths: list[int], width: int, masked: bool, method: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("c")
    write(folder, "x", "pbin", lengths, loss=masked)
    documents = fm.open(folder / "x.pbin")
    if method == "windows":
        if sum(lengths) < width:
            return
        dataset = fm.tokens.WindowDataset(documents, width=width, tail="pad", pad=0, positions=True)
        rows = dataset.read(range(len(dataset)))
        columns = dataset.read_batch(range(len(dataset)), "columns")
    else:
        packing = (
            fm.tokens.Packing(width, method=method, last="pad") if method == "concat" else fm.tokens.Packing(width)
        )
        plan = fm.tokens.PackedPlan(fm.Plan.over(documents, shuffle="none", epochs=1), packing, cache=folder / "cache")
        rows, columns = plan.read(range(len(plan))), plan.read_batch(range(len(plan)), "columns")
    targets = fm.tokens.Targets(document_ids=True, max_seqlen=True)
    wanted, found = targets(rows), targets.of_columns(columns)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert np.array_equal(found[name], value), name
        assert np.asarray(found[name]).dtype == np.asarray(value).dtype, name


def test_masks_go_to_other_processes(tmp_path: Path) -> None:
    masks = write(tmp_path, "x", "pbin", [4, 9])
    documents = fm.open(tmp_path / "x.pbin")
    assert isinstance(documents, fm.tokens.TokenDataset) and isinstance(documents.masks, Masks)
    again = pickle.loads(pickle.dumps(documents.masks))
    assert again.spans(0, np.array([4]), np.array([13]))[0].tolist() == masks[1].tolist()
    window = fm.tokens.WindowDataset(documents, width=4).read([1])[0]
    assert pickle.loads(pickle.dumps(window))["loss_mask"].tolist() == masks[1][:4].tolist()


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("format", ENDS)
def test_loss_tokens_are_what_the_masks_of_samples_select(
    format: str, remote: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "x", format, [5, 1, 12, 0, 3, 30, 2])
    write(tmp_path, "y", format, [9, 4], seed=1, loss=False)
    write(tmp_path, "z", format, [11, 2, 6], seed=2)
    if remote:
        monkeypatch.setattr(Masks, "flat", lambda *_: None)
        monkeypatch.setattr("feedmill.formats.tokens.masks._AT_ONCE", 16)
    files = [tmp_path / f"{stem}{ENDS[format]}" for stem in "xyz"]
    documents = fm.open([str(file) for file in files])
    own = [int(np.sum(sample["loss_mask"])) for sample in documents]
    assert documents.costs("loss_tokens").tolist() == own and own[7:9] == [9, 4]
    assert documents.total("loss_tokens") == sum(own) == documents.loss_mask()["tokens_in_loss"]
    assert documents.total("loss_tokens", 2, 9) == sum(own[2:9])
    for settings in (
        {"width": 7},
        {"width": 7, "stride": 4},
        {"width": 5, "stride": 9},
        {"width": 7, "across": True},
        {"width": 7, "tail": "pad", "pad": 0},
        {"width": 20, "across": True, "tail": "pad", "pad": 0},
    ):
        windows = WindowDataset(documents, **settings)
        assert windows.costs("loss_tokens").tolist() == [int(np.sum(one["loss_mask"])) for one in windows], settings
    blocks = BlockDataset(documents, block_size=6)
    assert blocks.costs("loss_tokens").tolist() == [int(np.sum(one["loss_mask"])) for one in blocks]
    ordered = OrderedWindows(documents, Order(documents), seq_len=6, partial=True)
    assert ordered.costs("loss_tokens").tolist() == [int(np.sum(one["loss_mask"])) for one in ordered]


def test_all_tokens_without_a_mask_are_loss_tokens(tmp_path: Path) -> None:
    write(tmp_path, "x", "pbin", [5, 12, 4], loss=False)
    documents = opened(tmp_path, "x", "pbin")
    assert documents.costs("loss_tokens").tolist() == [5, 12, 4]
    assert opened(tmp_path, "x", "pbin", seq_len=4).total("loss_tokens") == 5 * 5  # a window has one token more
    padded = WindowDataset(documents, width=10, tail="pad", pad=0)
    assert padded.costs("loss_tokens").tolist() == [10, 10, 1]


def test_counts_of_large_masks_are_cached_until_the_mask_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedmill.formats.kept.KEPT_FROM", 2)
    masks = write(tmp_path, "x", "pbin", [5, 12, 4])
    counts = [int(mask.sum()) for mask in masks]
    assert opened(tmp_path, "x", "pbin").costs("loss_tokens").tolist() == counts
    with monkeypatch.context() as patch:
        patch.setattr(Masks, "counts", lambda *_: pytest.fail("counted again"))
        assert opened(tmp_path, "x", "pbin").costs("loss_tokens").tolist() == counts
    write(tmp_path, "x", "pbin", [5, 12, 4], seed=3)
    assert opened(tmp_path, "x", "pbin").costs("loss_tokens").tolist() != counts


class Order:
    """Documents of a stream in reverse, and again."""

    def __init__(self, tokens: fm.Dataset) -> None:
        self.documents = np.concatenate([np.arange(len(tokens))[::-1], np.arange(len(tokens))])
        self.tokens = int(tokens.lengths[self.documents].sum())
        self.windows, self.identity = -(-(self.tokens - 1) // 6), "reverse"
