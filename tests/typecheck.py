"""What a type checker in an editor says to users of Feedmill: pyright over the samples of the README and the docs.

The ```` ```python ```` blocks of a page are one module, in order, on the lines that they have in the page. Each is
checked as a user's code against the installed package, in pyright's basic mode. ``python tests/typecheck.py`` is a
part of ``make lint``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.pages import blocks  # noqa: E402

SETTINGS = {
    "typeCheckingMode": "basic",
    "pythonVersion": f"{sys.version_info.major}.{sys.version_info.minor}",
    "reportIncompatibleMethodOverride": "error",  # as in editors: a page's hooks fit those that they override
    "extraPaths": [str(ROOT / "tests")],  # one page uses a stand-in of the tests
    "reportUnusedExpression": "none",  # a page shows values by naming them
}


def module(page: str) -> str:
    """The Python of a page, each line where the page has it."""
    lines = [""] * (page.count("\n") + 1)
    for block in blocks(page):
        if block.language == "python":
            session = ">>>" in block.text
            for number, line in enumerate(block.text.splitlines(), block.line):
                if not session:
                    lines[number] = line
                elif line.startswith((">>> ", "... ")):
                    lines[number] = line[4:]
    return "\n".join(lines) + "\n"


def check(pages: dict[str, str], folder: Path) -> list[str]:
    """Pyright's errors in these pages, by their names and lines; modules are written into `folder`."""
    modules = {}
    for name, page in pages.items():
        path = folder / (name.replace("/", "_").replace("-", "_").removesuffix(".md") + "_page.py")
        path.write_text(module(page))
        modules[str(path)] = name
    (folder / "pyrightconfig.json").write_text(json.dumps(SETTINGS))
    quiet = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}  # it does not look for a newer release
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "-p", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=quiet)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"pyright did not run: {done.stdout}{done.stderr}") from None
    assert report["summary"]["filesAnalyzed"] >= len(pages), report["summary"]
    return [
        f"{modules[found['file']]}:{found['range']['start']['line'] + 1}: {found['message']} ({found.get('rule')})"
        for found in report["generalDiagnostics"]
        if found["severity"] == "error" and not _of_others(found["message"])
    ]


def _of_others(message: str) -> bool:
    """What another package re-exports without saying so is not ours to change."""
    return "is not exported from module" in message and '"feedmill' not in message


def main() -> int:
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    with tempfile.TemporaryDirectory(prefix="feedmill-typing-") as folder:
        errors = check({str(path.relative_to(ROOT)): path.read_text() for path in paths}, Path(folder))
    print("\n".join([*errors, f"{len(errors)} errors in the samples of {len(paths)} pages"]))
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
