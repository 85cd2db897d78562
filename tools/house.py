"""How large the house is, and how long the ways through it: `python tools/house.py [--json | --ways]`.

Counts come from the syntax trees of ``src/feedmill`` (imports inside functions and for types included), the ways from a
profiler's hook on the second call of each of six journeys, which is when nothing is imported any more. With ``--ways``
the files of each journey are listed as it first enters them, with the lines of them that run.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import os
import re
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "feedmill"
TABLES = {"feedmill.cli.verbs"}
"""Tables of modules by name, of which one is imported when its verb runs: its names are no imports."""
LENDING = {"feedmill.documents"}
"""Rooms that have names of higher rooms for users, as ``fm.documents.extract``: for type checkers, and when called."""
_NAMED = re.compile(r"feedmill(\.[a-z_0-9]+)+$")


@cache
def modules() -> dict[str, Path]:
    """Every module by its dotted name; a package stands for its ``__init__``."""
    paths = sorted(SOURCE.rglob("*.py"))
    return {
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


@cache
def uses() -> dict[str, set[str]]:
    """The modules that each module imports, wherever in it, or names in a string."""
    found: dict[str, set[str]] = {}
    for name, path in modules().items():
        wanted: set[str] = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                wanted.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                wanted |= {each for each in inner if each in modules()}
                if not inner <= modules().keys():
                    wanted.add(node.module)
            elif name in TABLES:
                continue
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAMED.match(node.value):
                wanted.add(node.value if node.value in modules() else node.value.rpartition(".")[0])
        found[name] = {each for each in wanted if each in modules() and each != name}
    return found


def importers() -> dict[str, set[str]]:
    """The modules that import each."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, wanted in uses().items():
        for each in wanted:
            found[each].add(name)
    return found


def circles() -> list[set[str]]:
    """Modules that import one another through others; a package that its own modules name is no step of one.

    Tarjan's algorithm: https://en.wikipedia.org/wiki/Tarjan%27s_strongly_connected_components_algorithm
    """
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for other in sorted(uses()[name]):
            if name.startswith(f"{other}."):
                continue
            if other not in order:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], order[other])
        if lowest[name] == order[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(set(stack[at:]))
            del stack[at:]

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        for name in modules():
            if name not in order:
                visit(name)
    finally:
        sys.setrecursionlimit(limit)  # tests count on the usual one
    return found


@cache
def levels() -> dict[str, int]:
    """The level of each room, as the table in CONTRIBUTING.md has it."""
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    return {room: int(number) for number, rooms in rows for room in re.findall(r"`(\w+)`", rooms)}


def arrows_up() -> list[tuple[str, str]]:
    """Imports of a room by one that is not above it."""
    level = levels()
    found = []
    for name, wanted in uses().items():
        room = ([*name.split("."), ""])[1]
        for other in sorted(wanted):
            theirs = ([*other.split("."), ""])[1]
            allowed = (
                name in LENDING
                or room == theirs
                or (room, theirs) == ("compat", "cli")
                or not {room, theirs} <= level.keys()
            )
            if not allowed and level[theirs] >= level[room]:
                found.append((name, other))
    return found


def error_kinds() -> dict[str, int]:
    """The kinds of errors, and how often the code names each outside their list."""
    from feedmill.errors import KINDS

    found = dict.fromkeys((kind for kinds in KINDS.values() for kind in kinds), 0)
    for path in modules().values():
        for kind in kinds_named(path):
            if kind in found:
                found[kind] += 1
    return found


def kinds_named(path: Path) -> Iterator[str]:
    """The strings of a module, but for those of the list of kinds."""
    tree = ast.parse(path.read_bytes())
    listed = [node for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "KINDS"]
    own = {id(each) for node in listed for each in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in own:
            yield node.value


def verbs() -> dict[str, tuple[int, int]]:
    """By verb: the parameters of its function and the options of its command."""
    import typer.main

    import feedmill as fm
    from feedmill.cli.app import new_app
    from feedmill.cli.verbs import VERBS, function_of

    found = {}
    faces = (fm, fm.documents, fm.tokens, fm.edit)
    for name, verb in VERBS.items():
        module = __import__(verb.module, fromlist=["app"])
        if hasattr(module, "app"):
            continue
        app = new_app()
        app.command(name)(getattr(module, function_of(name)))
        options = [each for each in typer.main.get_command(app).params if each.param_type_name == "option"]
        word = {"import": "import_data"}.get(name, name.split()[-1].replace("-", "_"))
        function = next((getattr(each, word) for each in faces if hasattr(each, word)), None)
        found[name] = (len(inspect.signature(function).parameters) if callable(function) else 0, len(options))
    return found


def _captions(folder: Path) -> Path:
    import feedmill as fm

    with fm.writer(str(folder), max_shard_samples=50) as out:
        for number in range(100):
            out.write({"__key__": f"{number:04}", "txt": f"text {number} " * 9, "json": {"n": number}})
    return folder


def journeys(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The ways of an engineer: each is called twice, and followed the second time."""
    import feedmill as fm

    data = _captions(folder / "set")
    dataset = fm.open(str(data))
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"seed: 1\nblend:\n  - {{path: {data}, weight: 1}}\n  - {{path: {data}, name: again, weight: 2}}\n"
    )
    documents = folder / "documents"
    documents.mkdir()
    lines = [
        json.dumps({"id": str(n), "text": f"the text of document {n}, and some more words " * 5}) for n in range(300)
    ]
    (documents / "a.jsonl").write_text("\n".join(lines) + "\n")
    tokenizer = _tokenizer(folder, documents)
    turn = iter(range(100))

    yield "fm.open(prepared)", lambda: fm.open(str(data))
    yield "ds[3]", lambda: dataset[3]
    yield "recipe -> plan", lambda: fm.Recipe.load(str(recipe)).plan()
    plan = fm.Recipe.load(str(recipe)).plan()
    yield "loader's first batch", lambda: next(iter(fm.Loader(plan, batch_size=4, workers=0)))
    batches = iter(fm.Loader(plan, batch_size=4, workers=0))
    next(batches)
    yield "its next batch", lambda: next(batches)
    yield (
        "JSONL -> .pbin",
        lambda: fm.tokenize(
            [str(documents)], str(folder / f"tokens{next(turn)}/data"), tokenizer=str(tokenizer), eos="<eos>", workers=1
        ),
    )
    yield "tag", lambda: fm.tag([str(documents)], ["char_length_v1"], name=f"n{next(turn)}", workers=1)


def _tokenizer(folder: Path, documents: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    texts = [json.loads(line)["text"] for line in (documents / "a.jsonl").read_text().splitlines()]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=400, special_tokens=["<eos>"], show_progress=False)
    )
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def followed(call: Callable[[], Any]) -> dict[str, int]:
    """The files of the package, their own lines and the deepest stack that a call runs through."""
    seen: set[str] = set()
    deepest = 0
    prefix = f"{SOURCE}{os.sep}"
    depth: dict[int, int] = defaultdict(int)

    def hook(frame: Any, event: str, _: Any) -> None:
        nonlocal deepest
        if event in ("call", "return") and frame.f_code.co_filename.startswith(prefix):
            if event == "call":
                seen.add(frame.f_code.co_filename)
            thread = threading.get_ident()
            depth[thread] += 1 if event == "call" else -1
            deepest = max(deepest, depth[thread])

    threading.setprofile(hook)
    sys.setprofile(hook)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {"files": len(seen), "lines": sum(_lines(Path(each)) for each in seen), "deepest stack": deepest}


def hops(call: Callable[[], Any]) -> dict[str, tuple[str, set[int]]]:
    """The files that a call runs through, in order: the first function of each, and which of its lines run."""
    found: dict[str, tuple[str, set[int]]] = {}
    prefix = f"{SOURCE}{os.sep}"

    def hook(frame: Any, event: str, _: Any) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(prefix):
            return None
        ran = found.setdefault(path.removeprefix(prefix), (frame.f_code.co_qualname, set()))[1]
        if event == "line":
            ran.add(frame.f_lineno)
        return hook

    threading.settrace(hook)
    sys.settrace(hook)
    try:
        call()
    finally:
        sys.settrace(None)
        threading.settrace(None)
    return found


@cache
def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def house() -> dict[str, Any]:
    """All figures."""
    single = {name: next(iter(each)) for name, each in importers().items() if len(each) == 1}
    beside = [n for n, one in single.items() if n.rpartition(".")[0] in (one, one.rpartition(".")[0])]
    facts: dict[str, Any] = {
        "lines": sum(map(_lines, modules().values())),
        "files": len(modules()),
        "files with one importer": len(single),
        "of these in its folder": len(beside),
        "circles": len(circles()),
        "modules in circles": sum(map(len, circles())),
        "arrows up": len(arrows_up()),
        "error kinds": len(error_kinds()),
        "error kinds used once": sum(count == 1 for count in error_kinds().values()),
    }
    facts["rooms"] = {}
    for name, path in modules().items():
        room = facts["rooms"].setdefault(([*name.split("."), "face"])[1], {"lines": 0, "files": 0})
        room["lines"] += _lines(path)
        room["files"] += 1
    facts["verbs"] = {name: {"parameters": a, "options": b} for name, (a, b) in verbs().items()}
    facts["journeys"] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        for name, call in journeys(Path(folder)):
            call()
            facts["journeys"][name] = followed(call)
    return facts


def show_ways() -> None:
    """Print the files of each journey."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        for name, call in journeys(Path(folder)):
            call()
            print(f"\n{name}\n")
            for path, (first, ran) in hops(call).items():
                print(f"{len(ran):4} of {_lines(SOURCE / path):4} lines  {path}  ({first})")


def main() -> None:
    """Print the figures, as tables of Markdown or, with ``--json``, as JSON."""
    if "--ways" in sys.argv:
        show_ways()
        return
    facts = house()
    if "--json" in sys.argv:
        print(json.dumps(facts, indent=1))
        return
    plain = {name: value for name, value in facts.items() if not isinstance(value, dict)}
    print("\n".join(["| what | count |", "|---|---|", *(f"| {name} | {value:,} |" for name, value in plain.items())]))
    for table in ("journeys", "rooms", "verbs"):
        heads = list(next(iter(facts[table].values())))
        print(f"\n| {table} | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
        for name, row in facts[table].items():
            print(f"| {name} | {' | '.join(f'{value:,}' for value in row.values())} |")


if __name__ == "__main__":
    main()
