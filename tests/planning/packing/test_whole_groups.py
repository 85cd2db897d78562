"""Groups of documents in packed rows, against a plan made document by document with nothing of the product's."""

from __future__ import annotations

import json
import tarfile
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.loading.loader import Loader
from feedmill.planning.nodes import Blend, Groups, Leaf, Node, Repeat
from feedmill.planning.packing.options import Packing
from feedmill.planning.packing.packed import PackedPlan
from feedmill.planning.plan import Plan
from helpers.counted import counted
from helpers.durations import examples
from helpers.lineage_data import TOKENIZER
from helpers.token_dataset import Tokenized


def best_fit(sizes: list[int], seq_len: int) -> list[list[int]]:
    """Rows of items: the longest first, each into the row with the least room for it, of equal ones the latest."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # and when it was reached
    for step, item in enumerate(sorted(range(len(sizes)), key=lambda item: -sizes[item])):
        fitting = [row for row in range(len(rows)) if room[row][0] >= sizes[item]]
        row = min(fitting, key=lambda row: (room[row][0], -room[row][1]), default=len(rows))
        if row == len(rows):
            rows.append([])
            room.append((seq_len, 0))
        rows[row].append(item)
        room[row] = room[row][0] - sizes[item], step
    return rows


@given(st.data())
@settings(max_examples=examples(40), deadline=None)
def test_rows_are_best_fit_of_whole_groups(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([0, 1, 2, 3]))  # 0: of several sizes
    several = st.lists(st.integers(1, 4), min_size=2, max_size=25).filter(lambda each: 2 * max(each) <= sum(each))
    sizes = data.draw(several) if size == 0 else [size] * data.draw(st.integers(2, 25))
    bounds, count = np.cumsum([0, *sizes]), sum(sizes)
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    lengths = [draw.integers(data.draw(st.sampled_from([0, 1])), 20, count), draw.integers(1, 9, 17)]
    order = data.draw(st.sampled_from([["none"], ["global"], ["block", 6, 2]]))
    within = data.draw(st.sampled_from(["stored", "shuffled"]))
    made: Any = {"by": "group", "bounds": bounds} if size == 0 or data.draw(st.booleans()) else {"size": size}
    node: Node = Repeat(Groups(Leaf(0, count), 5, order, within=within, **made), data.draw(st.integers(1, 3)))
    blended = size > 0 and data.draw(st.booleans())
    if blended:
        node = Blend([Repeat(node), Repeat(Leaf(1, 17))], [2, 1], run_length=size, in_groups=True)
        node = Repeat(node, length=node.whole(data.draw(st.integers(size, 90))))
    names = ["docs", "more"][: 1 + blended]
    documents = Plan(node, [Tokenized(*each) for each in zip(names, lengths, strict=False)], names, 3)
    total = documents.length or 0

    located = documents.locate(np.arange(total))
    stream = list(zip(located.source.tolist(), located.index.tolist(), located.epoch.tolist(), strict=True))
    group = {i: number for number, (a, b) in enumerate(pairwise(bounds.tolist())) for i in range(a, b)}
    labels = [(s, group[i] if s == 0 else i, epoch) for s, i, epoch in stream]
    member = [i - int(bounds[group[i]]) if s == 0 else 0 for s, i, _ in stream]
    tokens = [int(lengths[s][i]) for s, i, _ in stream]
    items = [list(run) for _, run in groupby(range(total), key=labels.__getitem__)]
    seq_len = data.draw(st.integers(20, 60))
    kept = [item for item in items if min(own := [tokens[p] for p in item]) > 0 and sum(own) <= seq_len]
    if not kept:
        return

    buffer = data.draw(st.one_of(st.none(), st.integers(4, 60)))
    plan = PackedPlan(documents, Packing(seq_len, long="drop", buffer=buffer), tmp_path_factory.getbasetemp() / "rows")
    spans = plan.spans(range(len(plan)))
    rows = [spans.position[a:b].tolist() for a, b in pairwise(spans.row_offsets.tolist())]
    assert not spans.start.any() and spans.length.tolist() == [tokens[p] for row in rows for p in row]
    assert sorted(p for row in rows for p in row) == [p for item in kept for p in item]
    if buffer is not None or not blended:
        every = range(0, total, buffer or count)
        ends = [max(item[0] for item in items if item[0] <= cut) for cut in every] + [total]
        for begin, end in pairwise(ends):  # the rows of a buffer follow those before, in any order
            own = [item for item in kept if begin <= item[0] < end]
            packed = best_fit([sum(tokens[p] for p in item) for item in own], seq_len)
            wanted = sorted(sorted(p for n in row for p in own[n]) for row in packed)
            assert sorted(rows[: len(wanted)]) == wanted
            rows = rows[len(wanted) :]
        assert not rows

    some = spans.position[draw.integers(0, len(spans.position), 9)]
    placed = plan.placements(some)
    assert placed.offsets.tolist() == list(range(10)) and plan.locate_spans(placed.row).located.source.size >= 9
    for number, fields in enumerate(plan.read(range(len(plan)))):
        row = spans.position[spans.row_offsets[number] : spans.row_offsets[number + 1]].tolist()
        begins = np.cumsum([0, *(tokens[p] for p in row)]).tolist()
        assert fields["cu_seqlens"].tolist()[: len(begins)] == begins
        for p, at in zip(row, begins, strict=False):
            assert all(at == a for q, r, a in zip(some, placed.row, placed.at, strict=True) if (q, r) == (p, number))
        new = [n > 0 and labels[p] != labels[row[n - 1]] for n, p in enumerate(row)]
        padding = [-1] * (seq_len - begins[-1])
        repeats = [tokens[p] for p in row]
        assert fields["group_ids"].tolist() == [*np.repeat(np.cumsum(new), repeats).tolist(), *padding]
        assert fields["member_ids"].tolist() == [*np.repeat([member[p] for p in row], repeats).tolist(), *padding]
    report = plan.report()
    reached = plan.map.reach(len(plan))
    assert report.tokens == spans.length.sum() and report.left_out == sum(tokens[:reached]) - report.tokens


def pairs_at(folder: Path, count: int = 60, seed: int = 0) -> list[tuple[list[int], int, list[int], int]]:
    """Write pairs as `tokenize --chat preference` does, and single documents; return tokens and prompts."""
    draw, out = np.random.default_rng(seed), []
    for _ in range(count):
        prompt = draw.integers(100, 200, draw.integers(2, 9)).tolist()
        ours, theirs = (prompt + draw.integers(1, 99, draw.integers(1, 20)).tolist() for _ in range(2))
        out.append((ours, len(prompt), theirs, len(prompt)))
    for place, name in ((0, "chosen"), (2, "rejected")):
        with write_pbin(fm.open_store(folder), f"{name}.pbin", 2, loss=True) as file:
            for pair in out:
                tokens = np.array(pair[place])
                file.add(tokens, np.array([len(tokens)]), np.arange(len(tokens)) >= pair[place + 1])
    with write_pbin(fm.open_store(folder), "chats.pbin", 2, loss=True) as file:
        for number in range(30):
            file.add(np.full(number + 3, 300 + number), np.array([number + 3]), np.arange(number + 3) % 5 > 1)
    return out


PAIRS = """
seed: 3
samples: 200
blend:
  - {name: pairs, weight: 2, zip: [{path: chosen.pbin}, {path: rejected.pbin}]}
  - {path: chats.pbin, weight: 1}
pack: {seq_len: 80, long: drop}
balance: {by: attention, linear: 10}
"""


def recipe_at(folder: Path, text: str = PAIRS) -> fm.Recipe:
    (folder / "recipe.yaml").write_text(text)
    return fm.Recipe.load(folder / "recipe.yaml")


def test_pairs_of_two_files_share_rows_with_conversations(tmp_path: Path) -> None:
    """Rows are equal on any ranks and after a resume; tokens, masks, borders and ids are those of the lists written."""
    pairs = pairs_at(tmp_path)
    plan = recipe_at(tmp_path).plan()
    rows = plan.read(range(len(plan)))
    seen = {"pairs": 0, "chats": 0}
    for row in rows:
        ends, groups, members = row["cu_seqlens"].tolist(), row["group_ids"].tolist(), row["member_ids"].tolist()
        pieces = [(a, b) for a, b in pairwise(ends) if groups[a] >= 0]
        for a, b in pieces:
            assert set(groups[a:b]) == {groups[a]} and set(members[a:b]) == {members[a]}
            same = [other for other in pieces if groups[other[0]] == groups[a]]
            assert [members[other] for other, _ in same] == list(range(len(same)))
            tokens, mask = row["input_ids"][a:b].tolist(), row["loss_mask"][a:b].tolist()
            seen["pairs" if len(same) == 2 else "chats"] += 1
            if len(same) == 1:
                assert len(set(tokens)) == 1 and mask == [n % 5 > 1 for n in range(b - a)]
                continue
            place = 2 * members[a]
            (pair,) = [each for each in pairs if each[place] == tokens]
            assert mask == [n >= pair[1] for n in range(b - a)]
            ((begin, end),) = [other for other in same if other != (a, b)]
            assert row["input_ids"][begin:end].tolist() == pair[2 - place]
    assert sum(seen.values()) == 200 and seen["pairs"] in range(132, 136)

    def steps(world: int, size: int, count: int, start: Any = None) -> tuple[list[list[int]], Any]:
        made = [
            Loader(recipe_at(tmp_path).plan(), size, rank=r, world_size=world, remainder="drop") for r in range(world)
        ]
        for loader in made if start is not None else ():
            loader.load_state_dict(start)
        out: list[list[int]] = []
        for _, *batches in zip(range(count), *made, strict=False):
            out += sorted(row for batch in batches for row in batch["input_ids"].tolist())
        return out, json.loads(json.dumps(made[0].state_dict()))

    before, state = steps(2, 2, 3)
    after, _ = steps(3, 1, 5, state)
    flat = [row["input_ids"].tolist() for row in rows]
    wanted = [sorted(flat[at : at + 4]) for at in range(0, 12, 4)] + [
        sorted(flat[at : at + 3]) for at in range(12, 27, 3)
    ]
    assert [*before, *after] == [row for step in wanted for row in step]
    report = fm.trace(tmp_path / "recipe.yaml", step=0, global_batch=4)
    assert str(report).count("pairs/chosen") == str(report).count("pairs/rejected") > 0
    skipped = recipe_at(tmp_path, PAIRS + "skip: [1]\n").plan()
    assert [row["input_ids"].tolist() for row in skipped.read([0, 1])] == [flat[0], flat[2]]


def test_a_golden_plan_of_pairs(tmp_path: Path) -> None:
    pairs_at(tmp_path, 8)
    plan = recipe_at(tmp_path, PAIRS.replace("200", "20")).plan()
    spans = plan.locate_spans(range(len(plan)))
    where = [f"{'crx'[s]}{i}" for s, i in zip(spans.located.source, spans.located.index, strict=True)]
    rows = [" ".join(where[a:b]) for a, b in pairwise(spans.spans.row_offsets.tolist())]
    assert rows == ["c0 r0 x14 x29", "c2 r2 c4 r4", "c3 r3 c5 r5", "x23 c6 r6 c7 r7", "x13 x19 x16"]


def test_batches_of_packed_pairs_say_which_is_which(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pairs = pairs_at(tmp_path)
    plan = recipe_at(tmp_path, "{seed: 1, epochs: 1, source: {zip: [{path: chosen.pbin}, {path: rejected.pbin}]},"
                     " pack: {seq_len: 80, long: drop}}").plan()  # fmt: skip
    rows = plan.read(range(3))
    shifted = next(iter(Loader(plan, 3, rank=0, world_size=1, collate=fm.tokens.Targets(targets="labels"))))
    columns = fm.tokens.with_targets(rows, targets="labels")
    for name in ("group_ids", "member_ids", "labels"):
        assert shifted[name].tolist() == columns[name].tolist() and shifted[name].shape == (3, 79)
    dpo = fm.tokens.collate_rows(layout="dpo")(rows)
    count = len(dpo["input_ids"]) // 2
    for line, (ids, real, learned) in enumerate(zip(*(dpo[name].tolist() for name in dpo), strict=True)):
        member, tokens = line // count, [token for token, on in zip(ids, real, strict=True) if on]
        (pair,) = [pair for pair in pairs if pair[2 * member] == tokens]
        assert learned == [pair[1] <= n < len(tokens) for n in range(len(ids))] and sum(real) == len(tokens)
        assert (
            dpo["input_ids"][(line + count) % (2 * count)].tolist()[: len(pair[2 - 2 * member])] == pair[2 - 2 * member]
        )
    before = np.cumsum([0, *(row["group_ids"].max() + 1 for row in rows[:-1])])
    groups = [np.where((own := row["group_ids"]) < 0, -1, own + more) for row, more in zip(rows, before, strict=True)]
    wanted = [groups, *([row[name] for row in rows] for name in ("member_ids", "input_ids"))]
    for layout in ("transformers", "axolotl", "megatron", "torchtitan"):
        made = fm.tokens.collate_rows(layout=layout)(rows)
        flat = (
            made[0]
            if layout == "torchtitan"
            else {name: made[name][0] for name in ("group_ids", "member_ids", "input_ids")}
        )
        names = ("group_ids", "member_ids", "input" if layout == "torchtitan" else "input_ids")
        assert [flat[name].tolist() for name in names] == [np.concatenate(each).tolist() for each in wanted]
    with pytest.raises(DataError, match="samples that are not pairs"):
        fm.tokens.collate_rows(layout="dpo")(recipe_at(tmp_path).plan().read([0]))
    with pytest.raises(ConfigError, match="rows of tokens have no options of a processor"):
        fm.tokens.collate_rows(media=["jpg"])


STAGES = "stages: [{samples: 5, weights: {chats: 1}}, {weights: {chats: 1}, seq_len: 90}]"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "80, long: drop",
            "40, long: truncate",
            r"e.yaml:7: \d+ of 60 groups of 'pairs/chosen' have more than the 40 tok",
        ),
        ("drop", "drop, buffer: 1", "the group from document 0 on is larger than a buffer of 1"),
        ("rejected.pbin", "chats.pbin", "different numbers of samples: 'chosen' has 60, 'chats' has 30"),
        ("rejected.pbin}", "rejected.pbin, shuffle: global}", "stay beside those of the others: remove 'shuffle'"),
        ("zip:", "groups: 2, zip:", "the samples of a 'zip' are groups of one of each source"),
        (", {path: rejected.pbin}", "", "at least 2 items"),
        ("pack:", f"blend: [{{path: chats.pbin, groups: 2}}]\n{STAGES}\npack:", "begin at document 5, inside a group"),
    ],
)
def test_what_groups_cannot_do_is_an_error(tmp_path: Path, old: str, new: str, said: str) -> None:
    pairs_at(tmp_path)
    text = PAIRS.replace(old, new)
    if "stages" in text:
        text = text[: text.index("blend")] + text[text.rindex("blend") :]
    with pytest.raises(ConfigError, match=said):
        len(recipe_at(tmp_path, text).plan())


def test_what_no_row_holds_is_named(tmp_path: Path) -> None:
    pairs = pairs_at(tmp_path)
    plan = recipe_at(tmp_path, PAIRS.replace("80", "30")).plan()
    over = sorted((-len(a) - len(b), n) for n, (a, _, b, _) in enumerate(pairs) if len(a) + len(b) > 30)
    chosen, rejected, chats = plan.report().whole
    assert len(over) > 5 and chats.dropped[0].keys == ["29", "28"]
    for side in (chosen, rejected):
        (dropped,) = side.dropped
        assert (dropped.samples, side.kept) == (len(over), 60 - len(over))
        assert dropped.keys == [str(n) for _, n in over[:5]]
    assert "are of groups with more than the 30 tokens of a row" in str(plan.report())
    split = recipe_at(tmp_path, "{epochs: 1, source: {path: chats.pbin}, pack: {seq_len: 30}}").plan().report()
    assert "  split: 2 have more than the 30 tokens of a row (29, 28)" in str(split)


def test_a_changed_grouping_is_another_packing(tmp_path: Path) -> None:
    lines = [{"input_ids": [n] * (n % 5 + 1), "two": n // 2, "more": f"{n // 2}", "three": n // 3} for n in range(30)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    source = "{path: a.jsonl, tokens: input_ids, shuffle: none, groups: two}"
    text = f"{{epochs: 3, source: {source}, pack: {{seq_len: 20, long: drop}}}}"

    def loader(groups: str, epochs: int = 3, start: int = 0) -> Loader:
        changed = text.replace(", groups: two", groups).replace("3, s", f"{epochs}, s")
        return Loader(recipe_at(tmp_path, changed).plan(), 1, rank=0, world_size=1, start=start)

    state = json.loads(json.dumps(loader(", groups: two", start=9).state_dict()))
    for groups, epochs in ((", groups: two", 4), (", groups: more", 3), (", groups: 2", 3)):  # the same groups
        loader(groups, epochs).load_state_dict(state, allow_change=True)
    for groups in ("", ", groups: three"):
        with pytest.raises(ConfigError, match="groups are others, so other documents are packed together"):
            loader(groups).load_state_dict(state, allow_change=True)


def test_groups_of_samples_with_media_are_whole(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    tokens, media = draw.integers(1, 30, 40), draw.integers(0, 3, 40)
    tokens[7], media[20] = -1, 9
    node = Groups(Leaf(0, 40), 2, ["global"], size=2)
    plan = Plan(node, [counted("vqa", tokens, media)], ["vqa"], 1)
    packing = Packing(64, long="drop", refused="drop", multiple=4, media=4)
    packed = PackedPlan(plan, packing, tmp_path)
    places = -(-tokens // 4) * 4
    fits = [
        n
        for n in range(0, 40, 2)
        if tokens[n : n + 2].min() > 0 and places[n : n + 2].sum() <= 64 and media[n : n + 2].sum() <= 4
    ]
    found = []
    for row in packed.read(range(len(packed))):
        keys = list(map(int, row.keys))
        assert row.groups.tolist() == [n // 2 for n in range(len(keys))] and row.members.tolist() == [0, 1] * (
            len(keys) // 2
        )
        assert sum(media[keys]) <= 4 and row.cu_seqlens[-1] == sum(places[keys]) <= 64
        found += keys
    assert sorted(found) == [n for first in fits for n in (first, first + 1)]
    (whole,) = packed.report().whole
    assert (whole.kept, sum(each.samples for each in whole.dropped)) == (len(found), 40 - len(found))
    assert whole.dropped[-1].reason.startswith("are of groups with a sample that has no")
    with pytest.raises(ConfigError, match="would leave groups without one of their samples"):
        PackedPlan(plan, Packing(64, long="drop", refused="drop", mismatch="drop"), tmp_path)


def test_answers_of_a_prompt_have_their_rewards(tmp_path: Path) -> None:
    """Lines of token ids in groups by a text, with a column for each token: rows, batches with targets, and layouts."""
    draw = np.random.default_rng(4)
    lines = [
        {"input_ids": [n + 1] * int(draw.integers(2, 9)), "prompt_id": f"p{n // 3}", "reward": float(draw.normal())}
        for n in range(30)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    text = "{epochs: 2, source: {path: a.jsonl, tokens: input_ids, groups: prompt_id}, pack: {seq_len: 40, VALUES}}"
    plan = recipe_at(tmp_path, text.replace("VALUES", "long: drop, values: [reward]")).plan()
    rows = plan.read(range(len(plan)))
    for row in rows:
        real = row["input_ids"] > 0
        assert row["member_ids"][real].tolist() == [(token - 1) % 3 for token in row["input_ids"][real]]
        wanted = [np.float32(lines[token - 1]["reward"] if token else 0) for token in row["input_ids"].tolist()]
        assert row["reward"].dtype == np.float32 and row["reward"].tolist() == wanted
    batch = next(iter(Loader(plan, 4, rank=0, world_size=1, collate=fm.tokens.Targets())))
    assert batch["reward"].shape == batch["inputs"].shape
    assert plan.fingerprint == recipe_at(tmp_path, text.replace("VALUES", "long: drop")).plan().fingerprint
    for options, said in (
        ("values: [score]", "no column 'score' for 'values' of rows .its numeric fields: reward.*one of: reward"),
        ("values: [tokens]", "each needs a name of its own. Rename or remove 'tokens'"),
    ):
        with pytest.raises(ConfigError, match=said):
            recipe_at(tmp_path, text.replace("VALUES", options)).plan()
    fim = fm.tokens.FillInMiddle(prefix=91, middle=92, suffix=93, rate=0.7)
    for row in rows:
        moved = fim(row, np.random.default_rng(3))
        for a, b in pairwise(moved["cu_seqlens"].tolist()):
            tokens = set(moved["input_ids"][a:b].tolist()) - {91, 92, 93}
            own = np.float32(lines[token - 1]["reward"] if (token := tokens.pop()) else 0)
            assert not tokens and set(moved["reward"][a:b].tolist()) == {own}
            assert set(moved["member_ids"][a:b].tolist()) == {(token - 1) % 3 if token else -1}
    pytest.importorskip("torch")
    made = fm.tokens.collate_rows()(rows[:2])
    assert made["reward"].tolist() == [[*rows[0]["reward"].tolist(), *rows[1]["reward"].tolist()]]


def test_sides_that_lost_different_lines_are_not_paired(tmp_path: Path) -> None:
    """Both sides have as many documents, so that numbers alone paired each answer with that to another prompt."""
    sides = {"c": [f"c{n}" for n in range(10)], "r": [f"r{n}" for n in range(10)], "same": [f"s{n}" for n in range(10)]}
    sides["c"][3] = sides["same"][3] = sides["r"][6] = ""
    quiet = {"workers": 1, "progress": False}
    for name, texts in sides.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        fm.tokenize(
            tmp_path / f"{name}.jsonl", tmp_path / f"{name}.pbin", tokenizer=TOKENIZER, on_error="skip", **quiet
        )
        for seed in (1, 2):
            fm.tokens.shuffle([tmp_path / f"{name}.pbin"], tmp_path / f"{name}{seed}.pbin", seed=seed, **quiet)

    def paired(*names: str) -> int:
        recipe = {"source": {"zip": [{"path": str(tmp_path / f"{name}.pbin")} for name in names]}, "epochs": 1}
        return len(fm.Recipe.parse(recipe).plan())

    for names in (("c", "same"), ("c1", "same1"), ("r2", "r2")):
        assert paired(*names) == 18
    for names, why in (
        (("c", "r"), "without line 7 of .*, the latter without line 4 of"),
        (("c", "same", "r"), "document i of 'r' does not belong to document i of 'c'"),
        (("c1", "r1"), "without line 7 of .*, the latter without line 4 of"),
        (("c1", "same2"), "shuffled with seed 2, the latter shuffled with seed 1"),
        (("c", "same1"), "the former are shuffled with seed 1"),
    ):
        with pytest.raises(ConfigError, match=why):
            paired(*names)


def test_sides_in_another_order_are_not_paired(tmp_path: Path) -> None:
    orders = {"one": "abcd", "same": "abcd", "other": "acbd", "lost": "bcde", "unrelated": "wxyz"}
    for name, keys in orders.items():
        (tmp_path / name).mkdir()
        with tarfile.open(tmp_path / name / "0.tar", "w") as tar:
            for key in keys:
                tar.addfile(tarfile.TarInfo(f"{key}.txt"))

    def paired(*names: str) -> int:
        recipe = {"source": {"zip": [{"path": str(tmp_path / name)} for name in names]}, "epochs": 1}
        return len(fm.Recipe.parse(recipe).plan())

    assert paired("one", "same") == paired("one", "unrelated") == 8
    for names, why in (
        (("one", "other"), "'b' is sample 2 there, and 1 here"),
        (("one", "same", "lost"), "'b' is sample 0"),
    ):
        with pytest.raises(ConfigError, match=why):
            paired(*names)
