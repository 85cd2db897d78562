"""Text that is tokenized when it is read: the ids of `tokenize`, rows that depend on nothing but their position."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from helpers.durations import examples
from helpers.tokenizer_data import EOS, pbin_documents, tokenizer_file, write_lines
from helpers.tokenizer_kinds import texts

TOKENIZER = str(tokenizer_file("tok1k"))
TEXTS = [text for text in texts(700) if text.strip()][:400]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of documents, and token files of the same."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, part in (("web", TEXTS[:250]), ("code", TEXTS[250:])):
        source = write_lines(folder / f"{name}.jsonl", part)
        fm.prepare(source)
        fm.tokenize([source], {"pbin": folder / f"{name}.pbin"}, tokenizer=TOKENIZER, eos=EOS, workers=1)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def recipe(corpus: Path, pack: dict[str, Any] | None, tokens: bool = False, **more: Any) -> fm.Recipe:
    """A blend of both files, tokenized when they are read, or of their token files."""
    sources = []
    for name, weight in (("web", 0.7), ("code", 0.3)):
        how: dict[str, Any] = {} if tokens else {"tokenize": {"tokenizer": TOKENIZER, "eos": EOS}}
        path = str(corpus / f"{name}.{'pbin' if tokens else 'jsonl'}")
        sources.append({"name": name, "path": path, "weight": weight, **how})
    return fm.Recipe.parse({"seed": 5, "blend": sources, **({} if pack is None else {"pack": pack}), **more})


def rows_of(plan: Any, count: int) -> list[Any]:
    return [(row["input_ids"].tolist(), row["positions"].tolist(), row["tokens"]) for row in plan.read(range(count))]


def test_documents_are_those_of_the_verb(corpus: Path) -> None:
    data = fm.open(corpus / "web.jsonl", tokenize={"tokenizer": TOKENIZER, "eos": EOS})
    wanted = pbin_documents(corpus / "web.pbin")
    assert len(data) == 250 and data.lengths is None
    assert [sample["input_ids"].tolist() for sample in data.read(range(250))] == wanted
    numbers = np.array([7, 3, 7])
    assert data.lengths_of(numbers).tolist() == [len(wanted[n]) for n in (7, 3, 7)]
    assert [ids.tolist() for ids in data.read_tokens(numbers, np.array([1, 0, 2]), np.array([3, 2, 1]))] == [
        wanted[7][1:4], wanted[3][:2], wanted[7][2:3]
    ]  # fmt: skip
    again = pickle.loads(pickle.dumps(data))
    assert again.read([9])[0]["input_ids"].tolist() == wanted[9] and again.fingerprint() == data.fingerprint()
    assert fm.open(corpus / "web.jsonl", tokenize=TOKENIZER).fingerprint() == data.fingerprint()
    without = fm.open(corpus / "web.jsonl", tokenize={"tokenizer": TOKENIZER, "eos": None})
    assert without.fingerprint() != data.fingerprint()
    assert data.find(data.locate(5).key) == 5 and data.read([5])[0].source.where.endswith("web.jsonl")


def test_a_transform_of_the_loader_gives_the_tokens_of_each_sample(corpus: Path) -> None:
    transform = fm.tokens.TokenizeTransform(TOKENIZER, eos=EOS)
    plan = fm.Plan.over(fm.open(corpus / "web.jsonl"), shuffle="none", epochs=1)
    loader = fm.Loader(plan, 10, transform=transform, collate=list, rank=0, world_size=1)
    found = [sample["input_ids"].tolist() for batch in loader for sample in batch]
    assert found == pbin_documents(corpus / "web.pbin")


@pytest.mark.parametrize(
    "pack",
    [
        {"seq_len": 64, "buffer": 50},
        {"seq_len": 64, "buffer": 30, "long": "truncate"},
        {"seq_len": 48, "method": "concat", "overlap": True},
        {"seq_len": 48, "method": "concat"},
    ],
    ids=str,
)
def test_rows_equal_those_of_the_token_files(pack: dict[str, Any], corpus: Path) -> None:
    """Packing does not care where lengths and tokens come from; an endless stream is tokenized as far as it is read."""
    found, wanted = (recipe(corpus, pack, tokens).plan() for tokens in (False, True))
    assert found.length is None and rows_of(found, 120) == rows_of(wanted, 120)
    seen = sum(len(source._kept) for source in found.sources)
    assert 0 < seen <= 400
    assert rows_of(found, 400)[390:] == rows_of(wanted, 400)[390:]


def test_a_finite_stream_ends_with_the_same_row(corpus: Path) -> None:
    pack = {"seq_len": 64, "buffer": 64}
    sources = {"source": {"path": str(corpus / "code.jsonl"), "tokenize": {"tokenizer": TOKENIZER, "eos": EOS}}}
    found = fm.Recipe.parse({**sources, "seed": 1, "pack": pack, "epochs": 2}).plan()
    wanted = fm.Recipe.parse({"source": str(corpus / "code.pbin"), "seed": 1, "pack": pack, "epochs": 2}).plan()
    assert found.length == wanted.length and rows_of(found, found.length) == rows_of(wanted, wanted.length)
    assert found.report().tokens == wanted.report().tokens


@settings(max_examples=examples(5), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=st.sampled_from([(1, 4), (2, 2), (4, 1)]),
    second=st.sampled_from([(1, 4), (2, 4), (3, 2), (1, 1)]),
    steps=st.integers(0, 9),
    fresh=st.booleans(),
    method=st.sampled_from(["best_fit", "concat"]),
)
def test_layouts_and_resuming_change_nothing(
    first: tuple[int, int], second: tuple[int, int], steps: int, fresh: bool, method: str,
    corpus: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Any ranks and batch sizes, a resume at any step, with and without the sidecar: the same stream of rows."""
    pack: dict[str, Any] = {"seq_len": 32, "method": method} | ({"buffer": 40} if method == "best_fit" else {})
    wanted = [row[0] for row in rows_of(recipe(corpus, pack, tokens=True).plan(), 60)]

    def stream(layout: tuple[int, int], states: list[Any] | None, count: int) -> tuple[list[list[int]], list[Any]]:
        ranks, batch = layout
        plan = recipe(corpus, pack).plan()
        loaders = [fm.Loader(plan, batch, rank=rank, world_size=ranks) for rank in range(ranks)]
        for loader in loaders:
            if states is not None:
                loader.load_state_dict(states[0])
        iterators = [iter(loader) for loader in loaders]
        out: list[list[int]] = []
        for _ in range(count):
            parts = [next(iterator)["input_ids"].tolist() for iterator in iterators]
            out += sorted(row for part in parts for row in part)
        return out, [json.loads(json.dumps(loader.state_dict())) for loader in loaders]

    before, states = stream(first, None, steps)
    if fresh:
        monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path_factory.mktemp("other")))
    after, _ = stream(second, states, 3)
    done, size = steps * first[0] * first[1], second[0] * second[1]
    step = first[0] * first[1]
    assert before == [row for at in range(0, done, step) for row in sorted(wanted[at : at + step])]
    assert after == [row for at in range(done, done + 3 * size, size) for row in sorted(wanted[at : at + size])]


@pytest.mark.parametrize("method", ["best_fit", "concat"])
def test_stages_with_rows_of_their_own_are_those_of_token_files(
    method: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stages are tokenized when the loader begins; another machine resumes in the last one."""
    from feedmill.planning.packing import windows

    monkeypatch.setattr(windows, "ON_READ", 40)
    pack: dict[str, Any] = {"seq_len": 32, "method": method} | ({"buffer": 40} if method == "best_fit" else {})
    both = {"web": 1, "code": 1}
    stages = [{"samples": 90, "weights": both}, {"weights": both, "seq_len": 80}]

    def made(tokens: bool = False) -> Any:
        given = recipe(corpus, pack, tokens).model.model_dump(exclude_unset=True)
        for source in given["blend"]:
            del source["weight"]
        return fm.Recipe.parse({**given, "stages": stages}).plan()

    plan = made()
    (border,) = plan.borders
    assert rows_of(plan, border + 30) == rows_of(made(tokens=True), border + 30)
    loader = fm.Loader(plan, 4, start=border + 8)
    batches = iter(loader)
    for _ in range(40):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["packing"][3:] == [border]
    wanted = [next(batches)["input_ids"].tolist() for _ in range(3)]
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "other"))
    loader = fm.Loader(made(), 2)
    loader.load_state_dict(state)
    found = [row for _, batch in zip(range(6), loader, strict=False) for row in batch["input_ids"].tolist()]
    assert found == [row for batch in wanted for row in batch]
    assert loader.plan.map.phases[1].map.segments._base > 0  # nothing before the state is packed again in its stage
    assert pickle.loads(pickle.dumps(loader.plan)).map.firsts == [0, border]


@pytest.mark.parametrize("method", ["best_fit", "concat"])
def test_a_new_machine_resumes_without_reading_what_came_before(
    method: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from feedmill.planning.packing import windows

    monkeypatch.setattr(windows, "ON_READ", 40)
    pack: dict[str, Any] = {"seq_len": 32, "method": method} | ({"buffer": 40} if method == "best_fit" else {})
    plan = recipe(corpus, pack).plan()
    loader = fm.Loader(plan, 4, rank=0, world_size=1)
    batches = iter(loader)
    for _ in range(200):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    wanted = [next(batches)["input_ids"].tolist() for _ in range(3)]
    whole, accounts = len(plan.map.segments._heads), plan.report(loader.position)

    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "other"))
    other = recipe(corpus, pack).plan()
    loader = fm.Loader(other, 4, rank=0, world_size=1)
    loader.load_state_dict(state)
    batches = iter(loader)
    assert [next(batches)["input_ids"].tolist() for _ in range(3)] == wanted
    assert str(other.report(loader.position)) == str(accounts)  # nor does the account of what all ranks have drawn
    assert state["packing"][1] == other.map.segments._base > 5 and len(other.map.segments._heads) < whole - 3
    assert pickle.loads(pickle.dumps(other)).map.segments._base == other.map.segments._base
    assert rows_of(other, 5) == rows_of(plan, 5)  # earlier rows are planned when they are asked for
    changed = recipe(corpus, pack, tokens=True).plan()
    changed.use_landmark(state)
    assert changed.map.segments._base == 0


def test_workers_in_processes_give_the_same_rows(corpus: Path) -> None:
    plan = recipe(corpus, {"seq_len": 64, "buffer": 50}).plan()
    loader = fm.Loader(plan, 8, rank=0, world_size=1, workers=fm.Workers(2, processes=True))
    batches = iter(loader)
    found = np.concatenate([next(batches)["input_ids"] for _ in range(5)])
    batches.close()  # type: ignore[attr-defined]
    assert found.tolist() == [row[0] for row in rows_of(recipe(corpus, {"seq_len": 64, "buffer": 50}, True).plan(), 40)]


def test_invalid_documents_are_named_or_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = write_lines(tmp_path / "a.jsonl", ["one", {"text": None}, "", {"other": 1}, "two"])
    fm.prepare(source)
    data = fm.open(source, tokenize={"tokenizer": TOKENIZER, "eos": EOS})
    assert data.read([0])[0]["input_ids"].tolist()[-1] == 0
    with pytest.raises(DataError, match=r"a.jsonl.*the sample cannot be tokenized: .*on_error: skip"):
        data.read(range(5))
    data = fm.open(source, tokenize={"tokenizer": TOKENIZER, "eos": EOS, "on_error": "skip"})
    assert data.lengths_of(np.arange(5))[1:4].tolist() == [0, 0, 0]
    assert data.encoder.skipped == 2 and len(caplog.records) == 1
    plan = fm.Recipe.parse(
        {"source": {"path": str(source), "tokenize": {"tokenizer": TOKENIZER, "on_error": "skip"}}}
        | {"pack": {"seq_len": 8}, "epochs": 1}
    ).plan()  # fmt: skip
    assert plan.length == 1


def test_what_cannot_be_combined_is_refused(corpus: Path) -> None:
    with pytest.raises(ConfigError, match="'tokenize' is for text: the format pbin has tokens already"):
        fm.open(corpus / "web.pbin", tokenize=TOKENIZER)
    with pytest.raises(ConfigError, match=r"seq_len: text that is tokenized .*method: concat"):
        fm.open(corpus / "web.jsonl", tokenize=TOKENIZER, seq_len=8)
    with pytest.raises(ConfigError, match="has no EOS '<none>'"):
        fm.tokens.TokenizeTransform(TOKENIZER, eos="<none>")
    with pytest.raises(ConfigError, match="unknown value 'never'"):
        fm.tokens.TokenizeTransform(TOKENIZER, on_error="never")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tokeniser"):
        fm.Recipe.parse({"source": {"path": str(corpus / "web.jsonl"), "tokenize": {"tokeniser": "x"}}}).plan()
    mixed = {"path": str(corpus / "code.jsonl"), "weight": 1, "tokenize": str(tokenizer_file("tok1k_bos"))}
    with pytest.raises(ConfigError, match="was tokenized with"):
        fm.Recipe.parse(
            {"blend": [{"path": str(corpus / "web.pbin"), "weight": 1}, mixed], "pack": {"seq_len": 8}}
        ).plan()


def test_a_tokenizer_is_found_beside_the_recipe(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok/tokenizer.json").write_bytes(Path(TOKENIZER).read_bytes())
    (tmp_path / "r.yaml").write_text(
        f"source: {{path: {corpus / 'web.jsonl'}, tokenize: {{tokenizer: tok, eos: null}}}}\npack: {{seq_len: 16}}\n"
    )
    plan = fm.Recipe.load(tmp_path / "r.yaml").plan()
    assert plan.read([0])[0]["tokens"] > 0 and plan.map.size == 4096
