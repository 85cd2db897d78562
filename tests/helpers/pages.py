"""Running the documentation: the fenced blocks of a Markdown page are one session in one folder.

What a block's language means:

    python    is run; with ``>>>`` as a doctest
    output    what the python block before it printed
    console   lines from ``$ `` on are commands, what follows is what they print; `feedmill` runs in this process
    yaml      is parsed; where its first line is ``# NAME.yaml`` it is saved under that name
    text      is only shown: layouts, and what cannot run here

Printed text is compared loosely: ``...`` stands for anything, and white space, lines of progress and ``next: ...`` do
not count. A command has to succeed, unless what it prints has a line ``error: ...`` or ``found: ...``, or the next
command is ``echo $?``. Questions are answered with ``console answers="8,1,1|y"``.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.formats.yamls import read_yaml

LANGUAGES = ("python", "output", "console", "yaml", "text")
TOOLS = ("ls", "cat", "cp", "rm", "mv", "mkdir", "truncate", "printf")
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.M | re.S)
_LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_LIFE = re.compile(r"^[a-z ]+: (?:.* \(\d+%\).*|.* in [\dhmins ]+)\n", re.M)  # what a busy machine prints
_NEXT = re.compile(r"^next: feedmill .*\n", re.M)
_FAILS = re.compile(r"^(error|found): ", re.M)


@dataclass(frozen=True)
class Block:
    language: str
    options: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    found = []
    for match in _FENCE.finditer(page):
        language, _, options = match[1].partition(" ")
        found.append(Block(language, options, match[2], page.count("\n", 0, match.start()) + 1))
    return found


class Session:
    """Runs the blocks of one page, in the current folder."""

    def __init__(self, page: Path) -> None:
        self.page = page
        self.names: dict[str, Any] = {"__name__": f"docs.{page.stem}"}
        self.printed = ""
        self.status = 0

    def run(self) -> None:
        text = self.page.read_text()
        if "import torch" in text and find_spec("torch") is None:
            import pytest  # here, as a newcomer's environment has none

            pytest.skip("torch is not installed")
        for block in blocks(text):
            getattr(self, block.language)(block)

    def python(self, block: Block) -> None:
        if ">>>" in block.text:
            name = self.page.name
            test = doctest.DocTestParser().get_doctest(block.text, self.names, name, str(self.page), block.line)
            runner = doctest.DocTestRunner(verbose=False, optionflags=_LOOSE)
            report: list[str] = []
            runner.run(test, out=report.append, clear_globs=False)
            assert not runner.failures, "".join(report)
            self.names.update(test.globs)
            return
        code = compile("\n" * block.line + block.text, str(self.page), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, self.names)
        self.printed = out.getvalue()

    def output(self, block: Block) -> None:
        self.compare(block.text, self.printed, block)

    def yaml(self, block: Block) -> None:
        assert read_yaml(block.text, self.page.name).value is not None
        name = re.match(r"# ([\w./-]+\.yaml)\n", block.text)
        if name:
            Path(name[1]).parent.mkdir(parents=True, exist_ok=True)
            Path(name[1]).write_text(block.text)

    def text(self, block: Block) -> None:
        pass

    def console(self, block: Block) -> None:
        answers = re.search(r'answers="(.*?)"', block.options)
        stdin = answers[1].replace("|", "\n") + "\n" if answers else ""
        commands = re.split(r"^\$ ", block.text.replace("\\\n", " "), flags=re.M)[1:]
        for number, command in enumerate(commands):
            line, _, shown = command.partition("\n")
            if line == "echo $?":
                printed = f"{self.status}\n"
            else:
                printed = self.command(shlex.split(line), line, stdin)
                asked = number + 1 < len(commands) and commands[number + 1].startswith("echo $?")
                assert asked or bool(self.status) == bool(_FAILS.search(shown)), f"{block.line}: {line}\n{printed}"
            if shown.strip():
                self.compare(shown, printed, block)

    def command(self, words: list[str], line: str, stdin: str) -> str:
        if words[0] == "feedmill":
            done = CliRunner().invoke(app, words[1:], input=stdin, prog_name="feedmill")
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                raise done.exception
            self.status = done.exit_code
            return _NEXT.sub("", _LIFE.sub("", done.output))
        assert words[0] in TOOLS, f"{words[0]} is not a command that pages may use"
        ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
        self.status = ran.returncode
        return ran.stdout + ran.stderr

    def compare(self, wanted: str, found: str, block: Block) -> None:
        same = doctest.OutputChecker().check_output(wanted, found, _LOOSE)
        assert same, f"{self.page.name}:{block.line} shows\n{wanted}\nand this was printed\n{found}"
