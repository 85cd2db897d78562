from __future__ import annotations

import errno
import json
import os
import pty
import signal
import socket
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli import app as app_module
from feedmill.cli.app import app
from feedmill.cli.command import Json
from feedmill.cli.verbs import FRONT, GROUPS, VERBS, Verb
from feedmill.errors import DataError
from helpers import warm
from helpers.tars import make_shards

SOURCE = Path(__file__).parents[2] / "src"
NUMBERS = ["tokens", "numbers", "--tokens", "1M", "--seq-len", "1k"]


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install a verb ``try`` that raises the given exception."""

    def install(error: BaseException | None) -> None:
        def attempt(json: Json = False, name: Annotated[str, typer.Option()] = "x") -> None:
            typer.echo("working")
            if error is not None:
                raise error

        monkeypatch.setitem(VERBS, "try", Verb("feedmill_test_verb", "A verb."))
        ours = SimpleNamespace(**{"try": attempt})
        monkeypatch.setattr(
            app_module, "import_module", lambda name: ours if name == "feedmill_test_verb" else import_module(name)
        )

    return install


def python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=180)


def test_help_lists_verbs_without_importing_them() -> None:
    done = python(
        "import sys; sys.argv = ['feedmill', '--help']\n"
        "from feedmill.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as end: print('status', end.code)\n"
        "heavy = {'rich', 'numpy', 'torch', 'pydantic', 'PIL', 'obstore'} & set(sys.modules)\n"
        "print('heavy', sorted(heavy), [m for m in sys.modules if m.startswith('feedmill.cli.')])\n"
    )
    lines = done.stdout.splitlines()
    assert "status 0" in lines
    assert "heavy [] ['feedmill.cli.output', 'feedmill.cli.verbs', 'feedmill.cli.command', 'feedmill.cli.app']" in lines
    for section, verbs in FRONT.items():
        rest = lines[lines.index(f"{section}:") + 1 :]
        listed = [line.split()[0] for line in rest[: rest.index("") if "" in rest else None] if line.startswith("  ")]
        assert listed == [*verbs, *(GROUPS if section == "More" else ())]


@pytest.mark.parametrize("name", list(VERBS))
def test_every_listed_verb_exists_and_has_help(name: str) -> None:
    assert find_spec(VERBS[name].module) is not None
    done = CliRunner().invoke(app, [*name.split(), "--help"])
    assert done.exit_code == 0, done.output
    assert "Usage:" in done.output


def test_version() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, "feedmill 0.1.0\n")


def test_an_error_is_one_message_with_status_1(verb: Any) -> None:
    verb(DataError("cut short", file="s0.tar", offset=512, fix="Copy it again."))
    done = CliRunner().invoke(app, ["try"])
    assert (done.exit_code, done.stderr) == (1, "error: s0.tar at byte 512: cut short. Copy it again.\n")


def test_an_error_as_json(verb: Any) -> None:
    verb(DataError("cut short", file="s0.tar", offset=512))
    done = CliRunner().invoke(app, ["try", "--json"])
    assert done.exit_code == 1
    document = json.loads(done.stdout.removeprefix("working\n"))
    assert document == {"error": {"kind": "bad-data", "file": "s0.tar", "offset": 512, "what": "cut short"}}


def test_debug_shows_the_traceback(verb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_DEBUG", "1")
    verb(DataError("cut short"))
    assert isinstance(CliRunner().invoke(app, ["try"]).exception, DataError)


def test_interrupted(verb: Any) -> None:
    verb(KeyboardInterrupt())
    done = CliRunner().invoke(app, ["try"])
    assert (done.exit_code, done.stderr) == (130, "interrupted; finished work is kept\n")


def test_an_interrupted_question(verb: Any) -> None:
    for context, status in ((KeyboardInterrupt(), 130), (EOFError(), 1), (None, 1)):
        answer = typer.Abort()
        answer.__context__ = context
        verb(answer)
        done = CliRunner().invoke(app, ["try"])
        assert done.exit_code == status and ("finished work is kept" in done.stderr) is (status == 130)


@pytest.mark.parametrize("name", ["typing", "typer"])
def test_an_interrupt_during_the_imports_shows_no_traceback(name: str) -> None:
    done = python(
        "import runpy, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {name!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "runpy.run_module('feedmill', run_name='__main__')\n"
    )
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize(("term", "codes"), [("dumb", False), ("xterm", True)])
def test_a_dumb_terminal_gets_no_codes(term: str, codes: bool) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "feedmill", *NUMBERS]
    subprocess.run(command, stdout=theirs, env={**os.environ, "PYTHONPATH": str(SOURCE), "TERM": term}, check=True)
    assert (b"\x1b[" in os.read(ours, 1 << 16)) is codes
    os.close(theirs)
    os.close(ours)


@pytest.mark.parametrize("arguments", [["nope"], ["try", "--nope"], ["try", "--name"]])
def test_wrong_usage_is_status_2(verb: Any, arguments: list[str]) -> None:
    verb(None)
    assert CliRunner().invoke(app, arguments).exit_code == 2


def feedmill(redirected: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a shell, with its streams redirected."""
    command = [sys.executable, "-m", "feedmill", *words]
    shell = ["bash", "-c", f'"$@" {redirected}', "bash", *command]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run(shell, capture_output=True, text=True, env=environment, timeout=180)


@pytest.mark.parametrize("redirected", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_failure(redirected: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    done = feedmill(redirected, "import", str(tmp_path / "a.txt"), str(tmp_path / "out"), "--progress", "none")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("wrote") or ">&-" in redirected
    done = feedmill(redirected, "show", str(tmp_path / "none"))
    assert done.returncode == 1 and (done.stderr.startswith("error: ") or "2>&-" in redirected)


def test_without_stdin_nobody_is_asked(tmp_path: Path) -> None:
    root = make_shards(tmp_path, [2])
    done = feedmill("<&-", "prepare", str(root), "--split-ratio", "1,0,0", "--progress", "none")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("prepared")


@pytest.mark.parametrize("words", [["--help"], ["show", "--help"], NUMBERS, [*NUMBERS, "--json"]])
def test_a_full_stdout_is_one_message(words: list[str]) -> None:
    done = feedmill("> /dev/full", *words)
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, done.stderr.strip())
    assert done.stderr.startswith("error: the disk is full")


def test_a_closed_pipe_is_quiet() -> None:
    code = (
        "import sys, typer\n"
        "from types import SimpleNamespace\n"
        "from feedmill.cli import app, verbs\n"
        "def lines() -> None:\n"
        "    for i in range(100000): typer.echo(i)\n"
        "app.VERBS['lines'] = verbs.Verb('x', 'x')\n"
        "app.import_module = lambda name: SimpleNamespace(lines=lines)\n"
        "sys.argv = ['feedmill', 'lines']\n"
        "app.main()\n"
    )
    child = warm.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert child.stdout is not None and child.stderr is not None
    with child:
        assert child.stdout.readline() == b"0\n"
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 1


@pytest.mark.parametrize("encoding", ["utf-8:strict", "utf-8:surrogateescape", "latin-1:strict"])
def test_what_a_terminal_does_not_have_is_shown_by_escapes(encoding: str) -> None:
    code = (
        "import sys, typer\n"
        "from types import SimpleNamespace\n"
        "from feedmill.cli import app, verbs\n"
        "def odd() -> None:\n"
        "    typer.echo('name \\udcff half \\ud800 far \\u65e5')\n"
        "app.VERBS['odd'] = verbs.Verb('x', 'x')\n"
        "app.import_module = lambda name: SimpleNamespace(odd=odd)\n"
        "sys.argv = ['feedmill', 'odd']\n"
        "app.main()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    far = b"\\u65e5" if "latin" in encoding else "日".encode()
    assert done.stdout == b"name \xff half \\ud800 far " + far + b"\n"


@pytest.mark.parametrize(
    "words",
    [
        ["edit", "repair", ""],
        ["check", ""],
        ["edit", "delete", "", "key"],
        ["tokens", "merge", "a.pbin", "", "o.pbin"],
        ["edit", "reshard", "a", "", "--max-shard-samples", "5"],
        ["compat", "energon", "prepare", ""],
        ["tag", ""],
    ],
)
def test_an_empty_argument_is_not_the_current_folder(words: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2 and "the argument is empty" in done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [KeyError("made[new]"), MemoryError(), RecursionError("too deep"), UnicodeError("x")])
def test_what_no_check_foresaw_is_one_message_that_says_whose_defect_it_is(
    verb: Any, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    verb(error)
    result = CliRunner().invoke(app, ["try"])
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert f"a defect of Feedmill ({type(error).__name__}" in result.output
    assert "issue tracker" in result.output and "FEEDMILL_DEBUG=1" in result.output
    shown = CliRunner().invoke(app, ["try", "--json"]).stdout.removeprefix("working\n")
    assert json.loads(shown)["error"]["kind"] == "defect"
    monkeypatch.setenv("FEEDMILL_DEBUG", "1")
    assert CliRunner().invoke(app, ["try"]).exception is error


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(errno.EMFILE, "x"), "emfile", "error: too many files are open. Raise the limit with 'ulimit -n'."),
        (OSError(errno.EIO, "I/O error", "a.tar"), "eio", "error: a.tar: I/O error. Check the disk and the path."),
        (OSError(errno.ENOSPC, "x", Path("o")), "enospc", "error: o: the disk is full. Free disk space"),
        (FileNotFoundError(errno.ENOENT, "x", b"b"), "not-found", "error: b: there is no such file or folder."),
        (OSError("of a library"), "defect", "a defect of Feedmill (OSError"),
    ],
)
def test_what_the_system_refuses_is_no_defect(verb: Any, error: OSError, kind: str, said: str) -> None:
    verb(error)
    done = CliRunner().invoke(app, ["try", "--json"])
    assert done.exit_code == 1 and said in done.stderr
    document = json.loads(done.stdout.removeprefix("working\n"))
    assert document["error"]["kind"] == kind


@pytest.mark.parametrize("works", [True, False])
def test_a_process_that_may_open_few_files_works_or_says_so(works: bool, tmp_path: Path) -> None:
    made = ({"__key__": f"k{i}", "txt": "a"} for i in range(60))
    fm.write(str(tmp_path / "d"), made, max_shard_samples=1, progress=False)
    words = ["edit", "reshard", str(tmp_path / "d"), str(tmp_path / "e"), "--max-shard-samples", "1", "--workers", "1"]
    code = (
        "import os, resource, sys\n"
        "import feedmill.cli.edit, feedmill.writing.reshard\n"
        "free = os.dup(0)\n"
        "os.close(free)\n"
        f"files = {64 if works else 'free + 3'}\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))\n"
        f"sys.argv = ['feedmill', *{words!r}]\n"
        "from feedmill.cli.app import main\n"
        "main()\n"
    )
    done = python(code)
    assert done.returncode == (0 if works else 1), done.stderr
    if works:
        assert len(fm.open(str(tmp_path / "e"))) == 60
    else:
        assert "too many files are open. Raise the limit with 'ulimit -n'." in done.stderr, done.stderr
        assert "defect" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", ["compat dolma mix", "compat energon info x", "compat modalities data", "vla", "nanotron"]
)
def test_the_peers_commands_too_say_whose_defect_it_is(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setattr(app_module.VerbGroup.__mro__[1], "invoke", fails)
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 1 and "a defect of Feedmill (KeyError" in result.output


def test_ctrl_c_does_not_wait_for_workers_that_wait_for_work() -> None:
    done = python(
        "import os, signal, sys\n"
        "from types import SimpleNamespace\n"
        "from feedmill.cli import app, verbs\n"
        "from feedmill.jobs.run import run\n"
        "left = run(abs, range(50), workers=2)\n"
        "def wait() -> None:\n"
        "    next(left)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "app.VERBS['wait'] = verbs.Verb('x', 'x')\n"
        "app.import_module = lambda name: SimpleNamespace(wait=wait)\n"
        "sys.argv = ['feedmill', 'wait']\n"
        "app.main()\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted; finished work is kept\n")


@pytest.mark.parametrize("words", [["show"], ["check"], ["bench"]])
def test_ctrl_c_beside_a_server_that_never_answers(words: list[str], tmp_path: Path) -> None:
    """The process does not wait for the thread with the request, which has a limit of several seconds."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        settings = {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.getsockname()[1]}",
            "AWS_ALLOW_HTTP": "true",
        }
        command = [sys.executable, "-m", "feedmill", *words, "s3://bucket/data"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with warm.Popen(
            command, env={**os.environ, **settings, "PYTHONPATH": str(SOURCE), "TMPDIR": str(tmp_path)}, **pipes
        ) as child:
            server.settimeout(240)
            connection, _ = server.accept()
            assert connection.recv(1), "a request was sent"
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=50)  # the request itself would wait for a minute
            connection.close()
    assert (child.returncode, out, err) == (130, "", "interrupted; finished work is kept\n")
    assert not list(tmp_path.iterdir()), "what the process registered for its end was done"
