"""Every verb of the command line is a function of the package with the same options."""

from __future__ import annotations

import contextlib
import inspect
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from typer.main import get_command
from typer.models import ArgumentInfo, OptionInfo
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.cli.engines import EngineOptions
from feedmill.cli.verbs import VERBS, function_of
from feedmill.errors import ConfigError
from feedmill.jobs.options import options_of
from feedmill.planning.nodes import shuffled
from helpers.faces import face_of, names
from helpers.tars import make_shards, write_tar

PRINTING = {"json", "interactive", "list", "schema", "bins", "plot", "plot_to", "progress"}
"""What only says how a report is shown."""
MEDIA = {"media_metadata", "media_by_extension", "media_by_header", "media_by_glob"}
ONLY_HERE: dict[str, tuple[set[str], set[str]]] = {
    "prepare": ({*MEDIA, "overwrite", "skip_dataset_yaml"}, {"media", "energon_exact", "shards"}),
    "import": (set(), {"out"}),  # the last of its arguments
    "prepare-media": (MEDIA, {"media"}),
    "delete": ({"keys_from", "yes"}, set()),
    "add-parts": (set(), {"encode"}),  # functions
    "mount": (set(), {"ready"}),
    "serve": ({"export", "compare", "check", "overwrite"}, {"on_start"}),  # the former are those of fm.report
    "tag": (set(), {"exact"}),  # of Dolma's face
    "filter": (set(), {"output", "predicate"}),  # a function
    "tokenize": (set(), {"loss_rule", "tokenizer_name", "unit_bytes"}),
    "convert": (set(), {"on_preview"}),
    "bench": (set(), {"log", "transform", "loader"}),
    "run": (set(), {"on_step"}),
}
"""Verb -> options that only the command line has, and those that only the function has."""
FACES = ("demo", "show", *(name for name in VERBS if name.startswith("compat ")))
"""A story, what is fm.info and fm.preview in Python, and the commands of other tools."""


def options(verb: str) -> tuple[int, set[str]]:
    """How many arguments a verb of the command line has, and the names of its options."""
    function = getattr(import_module(VERBS[verb].module), function_of(verb))
    arguments, names = 0, set()
    for name, hint in get_type_hints(function, include_extras=True).items():
        info = getattr(hint, "__metadata__", (None,))[0]
        arguments += isinstance(info, ArgumentInfo)
        if isinstance(info, OptionInfo):
            names.add(name.rstrip("_"))
    return arguments, names


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in FACES])
def test_a_verb_and_its_function_have_the_same_options(verb: str) -> None:
    arguments, words = options(verb)
    named = list(inspect.signature(face_of(verb)).parameters)
    only_words, only_named = ONLY_HERE.get(verb.rpartition(" ")[2], (set(), set()))
    if "engine" in words:  # for functions it is a context manager
        words -= set(options_of(EngineOptions))
    here, there = words - PRINTING, set(named[arguments:]) - PRINTING
    assert here - there == only_words and there - here == only_named


def command(verb: str) -> Any:
    """Return the command of a verb as the parser sees it."""
    found: Any = get_command(app)
    for word in verb.split():
        found = found.get_command(None, word)
    return found


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


PARAMETERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "workers": (None, {"Loader": 0}),  # a loader needs no other processes
    "overwrite": (False, {}),
    "on_error": ("raise", {}),
    "dry_run": (False, {}),
    "allow_empty": (False, {}),
    "max_shard_size": (None, {"Writer": "3GB", "write": "3GB", "import_data": "256MB"}),
    "max_shard_samples": (None, {"Writer": 10_000, "write": 10_000, "append": 10_000, "import_data": 5_000}),
    "seed": (None, {"FilterConfig": 0, "Plan": 0, "propose": 0, "fit": 0}),
}
"""Parameter -> its default, and those of functions and classes that have another one."""
OTHER_NAMES = {
    *("num_workers", "num_procs", "n_jobs", "nproc", "processes", "threads", "force", "redo", "replace", "exist_ok"),
    *("missing", "ignore_missing", "ignore_errors", "skip_bad", "errors", "plan_only", "simulate", "preview"),
    *("samples_per_shard", "shard_samples", "shard_size", "max_bad", "quiet", "verbose", "show_progress", "bar"),
    *("out_dir", "output_dir", "dest", "random_seed", "sequence_length"),
}
"""Names of ideas that have another one."""
MEANT = {("Workers", "processes"), ("bench", "processes"), ("AVDecoder", "threads")}
"""A flag of workers, and the threads of one decoder."""


def public() -> dict[str, Any]:
    """Return the parameters of every public function and class that has a signature."""
    found = {}
    for module, name in names():
        if module is fm.reports:
            continue  # their fields are no parameters
        with contextlib.suppress(TypeError, ValueError, AttributeError):
            face = getattr(module, name)
            if callable(face):
                found[name] = inspect.signature(face).parameters
    return found


def test_parameters_of_python_have_one_vocabulary() -> None:
    faces = public()
    assert len(faces) > 60 and {"tag", "prepare", "Loader", "write", "convert"} <= set(faces)
    assert not {(face, name) for face, named in faces.items() for name in set(named) & OTHER_NAMES} - MEANT
    wrong = {}
    for name, (default, others) in PARAMETERS.items():
        having = {face: named[name].default for face, named in faces.items() if name in named}
        assert set(others) <= set(having)
        wrong |= {(face, name): found for face, found in having.items() if found != others.get(face, default)}
    assert not wrong
    progress = {face: named["progress"].default for face, named in faces.items() if "progress" in named}
    assert set(progress.values()) <= {True, None}, progress  # shown on a terminal


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in FACES])
def test_an_option_has_the_default_of_the_parameter(verb: str) -> None:
    """Where both have one: otherwise the same words do something else in a script."""
    function = getattr(import_module(VERBS[verb].module), function_of(verb))
    here = inspect.signature(function).parameters
    there = inspect.signature(face_of(verb)).parameters
    named = {name.rstrip("_"): parameter.default for name, parameter in here.items()}
    given = [name for name in named if name in there and named[name] is not None]  # without one, the parameter's
    assert {name: named[name] for name in given} == {name: there[name].default for name in given}


SHORTS = {
    "-t": {"--tokenizer", "--tagger"},  # nobody gives both: each is the main option of its verbs
}
"""Short forms with more than one meaning, and why."""
KINDS_OF_VALUES = {
    "--against": "dedupe compares with documents, decontaminate with benchmarks",
    "--by": "dedupe names a unit, cells are by columns",
    "--document": "decode shows several, trace asks for one",
    "--exclude": "import excludes files by patterns of names, prepare excludes shards and keys by regular expressions",
    "--fields": "decontaminate names the parts of a question, prepare those of a sample",
    "--id": "import names a column, the others a field of a document or 'auto'",
    "--image": "run names that of a container, documents embed a part",
    "--keep": "dedupe --near chooses which copy stays, filter names a file of rules",
    "--key": "dedupe names the path of a field, trace the key of a sample",
    "--model": "mixture fit names a kind of regression, documents embed the files of a model",
    "--name": "serve names hosts, the others the attributes that they write",
    "--order": "merge has no order of Modalities",
    "--output": "files, folders, and beginnings of names; tag takes one for each input",
    "--split-ratio": "the example in the help",
    "--text": "import names a column, tokenize the path of a field",
    "--to": "tokenize writes several formats at once",
    "--token-size": "what each format can have",
    "--tokenizer": "serve shows several datasets",
    "--workers": "bench compares several numbers",
}
"""Options with more than one kind of value, and why."""


def parsed() -> list[Any]:
    """Each option of each verb, as the parser sees it."""
    verbs = [verb for verb in VERBS if verb not in FACES]
    return [each for verb in verbs for each in command(verb).params if each.param_type_name == "option"]


def long_name(option: Any) -> str:
    return next(name for name in option.opts if name.startswith("--"))


def test_an_option_has_the_same_names_in_every_verb_and_a_short_form_one_meaning() -> None:
    names: dict[str, set[tuple[str, ...]]] = {}
    meanings: dict[str, set[str]] = {}
    for option in parsed():
        names.setdefault(long_name(option), set()).add(tuple(sorted(option.opts)))
        for short in (name for name in option.opts if not name.startswith("--")):
            meanings.setdefault(short, set()).add(long_name(option))
    assert not {name: found for name, found in names.items() if len(found) > 1}
    several = {short: found for short, found in meanings.items() if len(found) > 1}
    assert several == SHORTS


def test_an_option_takes_the_same_kind_of_value_in_every_verb() -> None:
    kinds: dict[str, set[Any]] = {}
    for option in parsed():
        shown = option.metavar or str(option.type)
        kinds.setdefault(long_name(option), set()).add((shown, option.multiple, option.is_flag))
    assert {name for name, found in kinds.items() if len(found) > 1} == set(KINDS_OF_VALUES)


OPEN_ONLY = {
    "url": "'path' of a source",
    "steps": "under 'windows'",
    "raw": "samples of a recipe have their types",
    "trust": "an argument of Recipe.plan: a file may not trust itself",
    "files": "under 'windows'",
    "eos": "under 'windows'",
    "seq_len": "under 'windows'",
    "block_size": "under 'windows'",
    "positions": "under 'windows'",
    "boundaries": "under 'windows'",
    "reuse_last_target": "under 'windows'",
    "token_size": "under 'windows'",
}
"""Parameters of `feedmill.open` that are no key of a source in a recipe, and why."""


def test_a_recipe_has_the_keys_of_the_functions() -> None:
    from feedmill.planning.recipes.fields import PackModel, ShuffleModel, WindowsModel
    from feedmill.planning.recipes.schema import Member, RecipeModel

    opened = set(inspect.signature(fm.open).parameters)
    assert opened - set(Member.model_fields) == set(OPEN_ONLY)
    windows = {name for name, why in OPEN_ONLY.items() if "windows" in why}
    of_tokens = set(WindowsModel.model_fields) - {"frames"}  # written under 'windows' without a name of its own
    assert windows == of_tokens & opened == of_tokens
    assert set(PackModel.model_fields) >= set(inspect.signature(fm.tokens.Packing).parameters) - {"later"}  # of stages
    over = set(inspect.signature(fm.Plan.over).parameters)
    assert over - {"datasets", "weights"} <= set(RecipeModel.model_fields)
    shuffle = set(inspect.signature(shuffled).parameters) - {"child", "key", "sources"}
    assert shuffle == set(ShuffleModel.model_fields)
    loader = set(inspect.signature(fm.Loader).parameters)
    assert {"balance", "deal", "seed", "epochs"} <= loader & set(RecipeModel.model_fields)


def test_every_door_takes_the_same_special_values(tmp_path: Path) -> None:
    root = make_shards(tmp_path / "tars", [4, 3, 2, 2], parts=("json",))
    fm.prepare(root, split_ratio="2,1,1", progress=False)
    every = len(fm.open(root))
    assert len(fm.open(root, split="*")) == every > len(fm.open(root, split="train"))
    assert len(fm.Recipe.parse({"source": {"path": str(root), "split": "*"}, "epochs": 1}).plan()) == every
    shown = run("show", str(root), "--split", "*", "--json")
    assert shown.exit_code == 0, shown.output

    def first(plan: fm.Plan) -> list[list[int]]:
        located = plan.locate(range(20))
        return [located.index.tolist(), located.epoch.tolist()]

    for shuffle in ("none", "global", "block", "shards", {"kind": "block", "block": 2, "window": 2}):
        recipe = fm.Recipe.parse({"seed": 3, "source": {"path": str(root), "split": "*"}, "shuffle": shuffle}).plan()
        assert first(recipe) == first(fm.Plan.over(fm.open(root), shuffle=shuffle, seed=3)), shuffle
    assert first(fm.Plan.over(root, shuffle={"kind": "shards", "parallel": 1})) != first(
        fm.Plan.over(root, shuffle="shards")
    )
    for bad in ({"kind": "blok"}, {"kind": "global", "block": 2}, {"kinds": "block"}):
        with pytest.raises(ConfigError, match="Write it as in a recipe"):
            fm.Plan.over(root, shuffle=bad)

    for decode in ("bytes", "rgb8", {"image": "torchrgb8"}, None):
        assert type(fm.open(root, decode=decode, raw=True)[0]["json"]) is (bytes if decode in (None, "bytes") else dict)
    for bad in ({"images": "rgb8"}, "rgbx", 7):
        with pytest.raises(ConfigError):
            fm.open(root, decode=bad)  # type: ignore[arg-type]

    for text in ("2k", "2_000", "2e3", 2000):
        counted = fm.Recipe.parse({"source": {"path": str(root)}, "samples": text}).plan()
        assert len(counted) == 2000
        assert run("plan", str(root), "--samples", str(text)).exit_code == 0
    with pytest.raises(ConfigError, match="samples"):
        fm.Recipe.parse({"source": {"path": str(root)}, "samples": "2 kB"})


def test_one_name_counts_as_a_list_of_it(tmp_path: Path) -> None:
    """Not its letters: those of a key, a pattern or a part may be other keys, patterns and parts."""
    for folder in ("d", "more"):
        members = [
            (f"{key}.{part}", b'"x"') for key in ("a", "b", "ab") for part in ("t", "json" if folder == "d" else "id")
        ]
        write_tar(tmp_path / folder / "shards/0.tar", members)
        fm.prepare(tmp_path / folder, split_ratio="1,0,0", progress=False)
    fm.convert(tmp_path / "d", tmp_path / "t", "mds", fields="t", progress=False)
    assert list(fm.open(tmp_path / "t")[0]) == ["__key__", "t"]
    fm.convert(tmp_path / "d", tmp_path / "json.jsonl", "jsonl", fields="js*", progress=False)
    assert fm.open(tmp_path / "json.jsonl")[0]["json"] == {"__key__": "a", "json": "x"}
    fm.edit.add_parts(tmp_path / "d", tmp_path / "more", parts="id", progress=False)
    fm.edit.delete(tmp_path / "d", "ab", progress=False)
    assert [(sample.key, sorted(sample)) for sample in fm.open(tmp_path / "d")] == [
        ("a", ["id", "json", "t"]),
        ("b", ["id", "json", "t"]),
    ]
    (tmp_path / "texts").mkdir()
    for name in ("a.txt", "b.md"):
        (tmp_path / "texts" / name).write_text("some text")
    for given in ({"exclude": "*.md"}, {"include": "*.txt"}):
        report = fm.import_data(tmp_path / "texts", tmp_path / next(iter(given)), progress=False, **given)
        assert report.samples == 1
