"""The sidecar of cells: what it says is what NumPy finds in the codes, and damage is named."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats import cells as module
from feedmill.formats.cells import OUTSIDE, CellTable, Rule, block_of, cells_of, cells_path, read_cells, write_cells
from feedmill.storage import LocalStore
from helpers.number_dataset import Numbered
from oracles import cells as plain

RULE = Rule(("topic", "source"))


def drawn(seed: int, documents: int, cells: int, outside: float = 0.1) -> np.ndarray:
    """Codes of which some cells are rare, runs are long in some places, and some documents are in no cell."""
    draw = np.random.default_rng(seed)
    codes = draw.choice(cells, documents, p=draw.dirichlet(np.full(cells, 0.3))).astype(np.uint16)
    codes[documents // 3 : documents // 2] = 0
    codes[draw.random(documents) < outside] = OUTSIDE
    return codes


def written(folder, codes: np.ndarray, cells: int, lengths: np.ndarray | None = None, cuts: tuple[int, ...] = ()):
    bounds = [0, *cuts, len(codes)]
    pieces = [codes[a:b] for a, b in pairwise(bounds)]
    sizes = None if lengths is None else [lengths[a:b] for a, b in pairwise(bounds)]
    values = [[f"t{number}", number] for number in range(cells)]
    return write_cells(LocalStore(folder), "a/x.cells", RULE, "base", len(codes), values, pieces, sizes)


@pytest.mark.parametrize("seed", range(12))
def test_as_numpy(tmp_path, seed):
    draw = np.random.default_rng(seed + 100)
    documents, cells = int(draw.integers(1, 30_000)), int(draw.integers(1, 40))
    if seed == 0:
        documents = 8192  # whole blocks
    codes, lengths = drawn(seed, documents, cells), draw.integers(0, 500, documents)
    cuts = tuple(sorted(draw.integers(0, documents + 1, 3).tolist()))
    table = written(tmp_path, codes, cells, lengths, cuts)
    assert table.outside == int((codes == OUTSIDE).sum()) and len(table) == cells
    assert (table.of(range(documents)) == codes).all() and not table.verify()
    for cell, found in enumerate(table.cells):
        numbers = plain.members(codes, cell)
        assert (found.documents, found.tokens) == (len(numbers), int(lengths[numbers].sum()))
        assert (table.select(cell, range(len(numbers))) == numbers).all()
        assert (table.rank(cell, numbers) == np.arange(len(numbers))).all()
    asked, chosen = draw.integers(0, documents + 1, 300), draw.integers(0, cells, 300)
    expected = [plain.before(codes, *pair) for pair in zip(chosen.tolist(), asked.tolist(), strict=True)]
    assert table.before(chosen, asked).tolist() == expected
    inside = np.minimum(asked, documents - 1)
    ranks = table.rank(chosen, inside)
    assert ((ranks >= 0) == (codes[inside] == chosen)).all()
    again = pickle.loads(pickle.dumps(table))
    assert (
        again.cells == table.cells and (again.select(chosen[ranks >= 0], ranks[ranks >= 0]) == inside[ranks >= 0]).all()
    )


def test_digests_are_of_members(tmp_path):
    codes = np.random.default_rng(1).integers(0, 6, 20_000).astype(np.uint16)
    before = written(tmp_path / "a", codes, 6)
    codes[codes == 4] = 5
    after = written(tmp_path / "b", codes, 6)
    same = [one.digest == other.digest for one, other in zip(before.cells, after.cells, strict=True)]
    assert same == [True] * 4 + [False] * 2


def test_blocks_bound_the_counts():
    for documents, cells in [(100, 3), (10**8, 200), (10**8, 65_535), (10**10, 200), (10**10, 65_535)]:
        block = block_of(documents, cells)
        width = 4 if documents < 2**32 else 8
        counts = cells * width * -(-documents // block)
        assert block >= 4096 and counts <= documents + cells * width and counts <= 256 << 20


def test_wide_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_width", lambda documents: 8)
    codes = drawn(2, 10_000, 5)
    table = written(tmp_path, codes, 5)
    assert (table.select(3, range(table.cells[3].documents)) == plain.members(codes, 3)).all()


def test_names():
    rule = Rule(("quality", {"column": "score", "edges": [0.2, 0.5]}, "flag"))
    cell = module.Cell((3, "a/b", True), 1, None, None, "")
    assert cell.label(rule.columns) == "quality=3,score=a_b,flag=true"
    assert Rule.of(rule.json()) == rule and str(Rule(where={"b": [1], "a": "x"})) == "a: x and b: [1]"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-70], "size"),
        (lambda data: data[: len(data) // 2], "size"),
        (lambda data: data[:10], "truncated"),
        (lambda data: b"x" * len(data), "not an array file"),
        (lambda data: data.replace(b'"documents":5000', b'"documents":5001'), "hash"),
        (lambda data: data.replace(b'"codes"', b'"coder"'), "codes"),
        (lambda data: data.replace(b"[5000]", b"[4999]"), "codes"),
    ],
)
def test_damage_is_named(tmp_path, change, message):
    written(tmp_path, drawn(3, 5000, 4), 4)
    path = tmp_path / "a/x.cells"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=rf"x\.cells.*{message}"):
        read_cells(LocalStore(tmp_path), "a/x.cells")


def test_changed_codes_are_found_when_all_are_read(tmp_path):
    codes = drawn(4, 5000, 4)
    written(tmp_path, codes, 4)
    path = tmp_path / "a/x.cells"
    data = bytearray(path.read_bytes())
    data[1024:1026] = ((int(codes[0]) + 1) % 4).to_bytes(2, "little")
    path.write_bytes(data)
    (found,) = read_cells(LocalStore(tmp_path), "a/x.cells").verify()
    assert "codes contradict" in found.what
    data[1024:1124] = b"\xfe" * 100
    path.write_bytes(data)
    (found,) = read_cells(LocalStore(tmp_path), "a/x.cells").verify()
    assert "document 0 has the code 65278" in found.what


def test_wrong_input_is_named_and_leaves_no_file(tmp_path):
    codes = np.zeros(10, np.uint16)
    store = LocalStore(tmp_path)

    def write(values, documents=10, given=codes, lengths=None):
        write_cells(store, "x.cells", RULE, "base", documents, values, [given], lengths)

    for values, message in [
        ([], "0 cells"),
        (
            [["a", 1], ["b", 1], ["a", "1"]],
            r"named 'topic=a,source=1': those of the values \['a', 1\] and \['a', '1'\]",
        ),
        ([["a/b", 1], ["a_b", 1]], "named 'topic=a_b,source=1'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            write(values)
    with pytest.raises(DataError, match="expected 11 codes, found 10"):
        write([["a", 1]], 11)
    with pytest.raises(DataError, match="expected 9 codes, found 10"):
        write([["a", 1]], 9)
    with pytest.raises(DataError, match="document 4 is 7"):
        write([["a", 1]], given=np.array([0, 0, 0, 0, 7, 0, 0, 0, 0, 0], np.uint16))
    with pytest.raises(DataError, match="expected 10 lengths, found 3"):
        write([["a", 1]], lengths=[np.ones(3, np.int64)])
    assert not list(tmp_path.iterdir())
    with pytest.raises(NotFound, match="mixture cells"):
        read_cells(store, "x.cells")


def test_out_of_range(tmp_path):
    table = written(tmp_path, drawn(5, 100, 3), 3)
    for call in (
        lambda: table.select(3, [0]),
        lambda: table.select(0, [100]),
        lambda: table.select(0, [-1]),
        lambda: table.before(0, [101]),
        lambda: table.rank(-1, [0]),
    ):
        with pytest.raises(IndexError):
            call()


def test_paths(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "one.jsonl").write_text("{}\n")
    inside, path = cells_path(str(tmp_path / "set"), RULE)
    assert inside.url == str(tmp_path / "set") and path.startswith(".feedmill-cells/") and path.endswith(".cells")
    beside, other = cells_path(str(tmp_path / "one.jsonl"), RULE)
    assert beside.url == str(tmp_path) and other != path
    assert cells_path(str(tmp_path / "set"), RULE, "train")[1] != path


def test_the_dataset_is_checked(tmp_path):
    dataset = Numbered(str(tmp_path / "a.jsonl"), 20)
    with pytest.raises(ConfigError, match=r"a\.jsonl has no cells by topic,source\. Run 'feedmill mixture cells r\.y"):
        cells_of(dataset, RULE, "r.yaml")
    store, path = cells_path(dataset.url, RULE, dataset.split)
    write_cells(store, path, RULE, dataset.fingerprint(), 20, [["x", 1]], [np.zeros(20, np.uint16)])
    assert isinstance(cells_of(dataset, RULE), CellTable)
    for changed in (Numbered(dataset.url, 21), Numbered(dataset.url, 20, "2")):
        with pytest.raises(ConfigError, match="before its data changed"):
            cells_of(changed, RULE)
