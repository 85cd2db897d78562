"""What a newcomer types first gives the result, or an error that names the right thing.

Each guess was tried on an early release, where it failed in silence or with a wrong diagnosis.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.cli.verbs import VERBS
from feedmill.errors import ConfigError, NotFound
from helpers.faces import face_of
from helpers.tars import make_shards

TOKENIZER = Path(__file__).parents[1] / "golden/nanosets/tok1k"

GUESSES: list[tuple[str, int, str]] = [
    # files of several kinds: nothing is left out without a word
    ("tokenize raw -o t -t TOKENIZER", 1, "several kinds: 1 lines file ('web.jsonl'), 3 text files"),
    ("tokenize raw -o raw-tokens -t TOKENIZER --kind lines", 0, "skipped files     3"),
    ("convert raw x --to jsonl", 1, "3 files of text"),
    # files as they are
    ("show photos", 1, "feedmill import"),
    ("prepare photos", 1, "feedmill import"),
    ("convert photos x --to jsonl", 1, "feedmill import"),
    ("edit reshard photos x --max-shard-samples 2", 1, "feedmill import"),
    ("show texts", 1, "feedmill import"),
    ("show captions.csv", 1, "feedmill import"),
    ("import photos photo-set", 0, "captioning (CaptioningSample)"),
    ("import texts docs-set", 0, "documents   3"),
    ("tag docs -t char_length_v1", 0, "documents   3"),
    ("tag docs -t char_length_v1 -t edu=models/edu", 1, "A model is written edu=model:models/edu"),
    ("mixture cells docs --by 'topic,{column: score, quantiles: 2}'", 1, "Repeat the option: --by topic --by"),
    ("tag noid/documents -t char_length_v1", 1, "the document has no 'id'"),
    ("tag noid/documents -t char_length_v1", 1, "--id auto"),
    ("tag noid/documents -t char_length_v1 --id auto", 0, "documents   4"),
    # names of fields
    ("tokenize noid.jsonl -o t -t TOKENIZER --text txt", 1, 'its fields: "text"'),
    ("tokenize noid.jsonl -o t -t TOKENIZER --text txt --on-error skip", 1, "0 of 4 documents kept"),
    ("tokenize noid.jsonl -o t -t gpt2", 1, "Names of a model hub are not looked up"),
    ("filter misspelt.yaml", 1, "Did you mean 'quality__char_length_v1__length'"),
    ("tokenize pairs.jsonl -o t -t TOKENIZER --chat auto", 1, "rename 'response' to 'completion'"),
    ("import pairs.jsonl texts x --dry-run", 1, "rename 'response' to 'completion'"),
    # options and verbs
    ("tokenize noid.jsonl --out t -t TOKENIZER", 2, "--output"),
    ("check tars --on-error skip", 2, "'check' has none; import,"),
    ("import photos -o x", 2, "the output is an argument. Write 'feedmill import SRC... OUT'"),
    ("convert tars x --to mds --output y", 2, "the output is an argument. Write 'feedmill convert PATH DST'"),
    ("prepare tars --force", 2, "did you mean '--overwrite'?"),
    ("import photos x -f", 2, "did you mean '--overwrite'?"),
    ("documents stat docs -j 4", 2, "did you mean '--workers'?"),
    ("check tars --dry-run", 2, "'check' has none; import,"),
    ("show tars --workers 2", 2, "'show' has none; import,"),
    ("plan recipe.yaml --workers 3", 2, "'plan' has none; import,"),
    ("tokenize noid.jsonl -o t -t TOKENIZER --quiet", 2, "did you mean '--progress none'?"),
    ("import photos x --skip-errors", 2, "did you mean '--on-error skip'?"),
    ("import photos x --split 8,1,1", 2, "did you mean '--split-ratio'?"),
    ("import photos x --recursive", 2, "with their subfolders"),
    ("convert tars x --format mds", 2, "did you mean '--to'?"),
    ("convert tars x --to energon", 1, "Use --to webdataset, and then 'feedmill prepare'."),
    ("convert tars x --to datatrove", 1, "Use --to ds."),
    ("show tars --limit 3", 2, "did you mean '-n'?"),
    ("compat vla manifest tars --force", 2, "did you mean '--overwrite'?"),
    ("tokens merge a b --frobnicate", 2, "See 'feedmill tokens merge --help'"),
    ("import photos captions.csv two", 0, "1 x a caption or class beside media imported as captioning"),
    ("tag docs -t char_length_v1 --workers 2", 0, "documents"),
    ("tokens numbers --tokens 1e9 --seq-len 4k", 0, "1,000,000,000"),
    ("tokens numbers --tokens 1B --seq-len 4k", 0, "1,000,000,000"),
    ("pln recipe.yaml", 2, "did you mean 'plan'?"),
    ("tokenise noid.jsonl", 2, "did you mean 'tokenize'?"),
    ("mix a b", 2, "mixed by a recipe, see docs/recipes.md. Check it with 'feedmill plan recipe.yaml'"),
    ("blend a b", 2, "mixed by a recipe, see docs/recipes.md. Check it with 'feedmill plan recipe.yaml'"),
    ("train recipe.yaml", 2, "the batches of fm.Loader, see docs/training.md."),
    # published rules without a configuration
    ("filter docs kept --preset gopher --allow-empty", 0, "computed first: the attributes gopher_v2"),
    ("filter docs --preset gopher", 1, "feedmill filter DOCUMENTS... OUTPUT --preset NAME"),
    ("filter tagged kept --preset gopher --dry-run --allow-empty", 0, "3 by word_count >= 50"),
    ("filter tagged kept --preset gofer", 1, "Did you mean 'gopher'?"),
    # what destroys asks; what is empty is said
    ("edit delete tars s00000", 2, "--yes"),
    ("prepare five --split-ratio 8,1,1 --non-interactive", 0, "the split 'test' is empty: 5 shards are too few"),
    ("edit append typed tars --prefix x/", 1, "the field 'image' is read from 'jpg'"),
    # tokens are text
    ("show tokens.pbin", 0, "text:          document 0 has words<|endoftext|>"),
    # paths in recipes
    ("plan variable.yaml", 1, "environment variables in names are not expanded"),
    ("plan home.yaml", 1, "there is no such folder"),
]
"""Command, exit status, and what is shown."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("guesses")
    for folder in ("raw", "texts", "photos", "noid/documents"):
        (root / folder).mkdir(parents=True)
    lines = "".join(json.dumps({"text": f"document {n} has words"}) + "\n" for n in range(4))
    for path in ("raw/web.jsonl", "noid.jsonl", "noid/documents/web.jsonl"):
        (root / path).write_text(lines)
    (root / "pairs.jsonl").write_text('{"prompt": "Why?", "response": "So."}\n' * 3)
    for number in range(3):
        for folder in ("raw", "texts"):
            (root / folder / f"note{number}.txt").write_text(f"Note {number}.\n")
        Image.new("RGB", (8, 8)).save(root / f"photos/{number}.jpg")
        (root / f"photos/{number}.txt").write_text("black")
    (root / "captions.csv").write_text("file_name,text\n0.jpg,black\n")
    for folder, counts in (("five", [2] * 5), ("tars", [3])):
        make_shards(root / folder, counts)
    fm.prepare(root / "tars", progress=False)
    fm.import_data(root / "photos", root / "typed", progress=False)
    fm.import_data(root / "texts", root / "docs", progress=False)
    fm.import_data(root / "texts", root / "tagged", progress=False)
    fm.tag([root / "tagged"], ["gopher_v2"], progress=False)
    fm.tokenize([root / "noid.jsonl"], root / "tokens", tokenizer=TOKENIZER, workers=1, progress=False)
    fm.tag([root / "noid/documents"], ["char_length_v1"], name="quality", id="auto", progress=False)
    rule = "$.attributes[?(@.quality__char_length_v1__lenght[0][2] < 4)]"
    stream = {"name": "web", "documents": ["noid/documents/*"], "attributes": ["quality"], "output": {"path": "kept"}}
    mix = {"streams": [{**stream, "filter": {"exclude": [rule]}}]}
    (root / "misspelt.yaml").write_text(json.dumps(mix))
    (root / "variable.yaml").write_text("blend:\n  - {path: $DATA/x}\n")
    (root / "home.yaml").write_text("blend:\n  - {path: ~/feedmill-nothing}\n")
    return root


def run(command: str) -> Any:
    return CliRunner().invoke(app, shlex.split(command.replace("TOKENIZER", str(TOKENIZER))))


@pytest.mark.parametrize(("command", "status", "words"), GUESSES, ids=lambda value: str(value)[:60])
def test_a_first_guess(data: Path, monkeypatch: pytest.MonkeyPatch, command: str, status: int, words: str) -> None:
    monkeypatch.chdir(data)
    monkeypatch.setenv("HF_HOME", str(data / "no-cache"))
    done = run(command)
    assert done.exit_code == status, done.output
    assert words in done.output


PYTHON: list[tuple[Callable[[], Any], type[Exception] | None, str]] = [
    (lambda: fm.Loader(fm.open("typed"), 8), None, "Loader("),
    (lambda: fm.Plan.over("typed"), None, "Plan"),
    (lambda: fm.Loader(fm.Plan.over("typed"), 8, num_workers=2), TypeError, "did you mean 'workers'?"),  # type: ignore[call-arg]
    (lambda: fm.Loader(fm.Plan.over("typed"), 8, shuffle=True), TypeError, "the plan decides the order"),  # type: ignore[call-arg]
    (lambda: fm.write("x", [], split_ratio="8,1,1"), TypeError, "fm.prepare(url, split_ratio=...)"),  # type: ignore[call-arg]
    (lambda: fm.open("typed"), None, "3 samples"),
    (lambda: fm.open("photos"), NotFound, "feedmill import"),
    (lambda: fm.Plan.over("variable.yaml"), ConfigError, ""),
]


@pytest.mark.parametrize(("call", "error", "words"), PYTHON)
def test_a_first_guess_in_python(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[], Any],
    error: type[Exception] | None,
    words: str,
) -> None:
    monkeypatch.chdir(data)
    if error is None:
        assert words in repr(call())
        return
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)


def test_the_functions_of_the_verbs_are_in_the_package() -> None:
    assert all(callable(face_of(name)) for name in VERBS if VERBS[name].example and name != "demo")


@pytest.mark.parametrize("verb", [name for name, row in VERBS.items() if row.example])
def test_the_example_of_a_verb_has_valid_values(verb: str) -> None:
    """Where an option takes one of a few words, the example uses one of them."""
    words = shlex.split(VERBS[verb].example)
    known = {"--by": {"documents", "paragraphs", "ngrams"}, "--to": {"mds"}, "--on-error": {"raise", "skip"}}
    if verb == "mixture cells":
        del known["--by"]  # names of columns
    values = dict(pairwise(words))
    assert all(values[option] in known[option] for option in known if option in values)
