"""Read the names of a peer's settings from its source: ``python tests/interop/settings.py PEER SOURCE``.

SOURCE is a folder: an unpacked distribution, or a checkout at the pinned commit. Without it, the release is downloaded
from the package index. The source is parsed, never imported or run. The names are written to
``tests/golden/settings/PEER.json``, which ``tests/compat/test_settings.py`` compares with Feedmill's tables.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from feedmill.compat.settings import PEERS, Peer
from feedmill.formats.settings import Origin

GOLDEN = Path(__file__).parents[1] / "golden" / "settings"


def golden(name: str) -> Path:
    return GOLDEN / f"{name}.json"


def text(peer: Peer, source: Path) -> str:
    """What the golden file of a peer must contain: its release, and the names by face and origin."""
    faces = {table.face: [[*origin[:4], names(source, origin)] for origin in table.origin] for table in peer.tables}
    parts = [f' "release": {json.dumps(peer.release)}']
    for face, found in faces.items():
        parts.append(f" {json.dumps(face)}: [\n  " + ",\n  ".join(map(json.dumps, found)) + "\n ]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def names(source: Path, origin: Origin) -> list[str]:
    """The names that a module of a release defines, in its order."""
    found = next((at for at in (source / origin.file, source / "src" / origin.file) if at.is_file()), None)
    assert found is not None, f"{source} has no {origin.file}"
    tree: ast.AST = ast.parse(found.read_text())
    for part in origin.name.split(".") if origin.name else ():
        inside = [node for node in ast.walk(tree) if getattr(node, "name", None) == part]
        assert inside, f"{origin.file} has no {origin.name}"
        tree = inside[-1]  # of overloads, the last is the function itself
    kinds = (fields, methods, arguments, parameters, popped, options)
    made = {kind.__name__: kind for kind in kinds}[origin.kind](tree)
    return list(dict.fromkeys(origin.prefix + name for name in made if name not in origin.skip))


def fields(tree: ast.AST) -> Iterator[str]:
    assert isinstance(tree, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.dump(node.annotation):
            assert isinstance(node.target, ast.Name)
            yield node.target.id


def methods(tree: ast.AST) -> Iterator[str]:
    """Methods and properties, without those of Python itself."""
    assert isinstance(tree, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
            yield node.name


def popped(tree: ast.AST) -> Iterator[str]:
    """The words of ``kwargs.pop("word")``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "pop":
            word = node.args[0]
            assert isinstance(word, ast.Constant)
            yield word.value


def arguments(tree: ast.AST) -> Iterator[str]:
    """Names on the command line that Megatron-LM makes of fields: those it is given, ``no_`` for a true one."""
    assert isinstance(tree, ast.ClassDef)
    for node in tree.body:
        if not isinstance(node, ast.AnnAssign):
            continue
        inside = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
        given = [str(word) for word in inside if str(word).startswith("--")]
        default = node.value
        if isinstance(default, ast.Call):
            default = next((each.value for each in default.keywords if each.arg == "default"), None)
        true = isinstance(default, ast.Constant) and default.value is True
        assert isinstance(node.target, ast.Name)
        yield given[-1][2:].replace("-", "_") if given else "no_" * true + node.target.id


def parameters(tree: ast.AST) -> Iterator[str]:
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    arguments = tree.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if each.arg not in ("self", "cls"):
            yield each.arg
    for extra, star in ((arguments.vararg, "*"), (arguments.kwarg, "**")):
        if extra is not None:
            yield star + extra.arg


def options(tree: ast.AST) -> Iterator[str]:
    """Names as they are written on the command line, with underscores: those of argparse and of click."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        kind = getattr(call.func, "attr", getattr(call.func, "id", None))
        words = [word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        if kind in ("add_argument", "option", "argument") and words:
            yield max(words, key=lambda word: word.startswith("--")).lstrip("-").replace("-", "_")


def download(release: str, folder: Path) -> Path:
    """Unpack the distribution of a release of the package index; nothing of it is run."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, "--dest", str(folder), release], check=True)
    for path in list(folder.glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(folder / "source")
    return folder / "source"


def main(name: str, source: str | None = None) -> None:
    peer = PEERS[name]
    with tempfile.TemporaryDirectory() as folder:
        at = Path(source) if source else download(peer.release, Path(folder))
        golden(name).write_text(text(peer, at))


if __name__ == "__main__":
    main(*sys.argv[1:])
