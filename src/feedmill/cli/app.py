"""The `feedmill` command: lazily imported verbs, and errors reported as one message.

To add a verb, add a file to this package and a row to `verbs.py`. The file defines a function of the verb's name, or a
`typer.Typer` called `app` if the verb has subcommands.
"""

from __future__ import annotations

import atexit
import codecs
import contextlib
import os
import sys
import threading
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from feedmill._version import __version__
from feedmill.allocator import keep_freed_memory
from feedmill.cli.command import VerbCommand, finish, paint, with_hints
from feedmill.cli.output import fail, json_wanted
from feedmill.cli.verbs import FRONT, GROUPS, VERBS, function_of, meant_by
from feedmill.errors import FeedmillError, debugging, defect_of

_INTERRUPTED = 130
_KEPT_MEMORY = 64 << 20  # blocks of about a megabyte are allocated and freed often


class Words(TyperGroup):
    """Command group over `VERBS` that imports a verb only when it runs.

    Attributes:
        group: the words before those of its commands: empty for the front page.
    """

    group = ""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the verbs and groups that the help lists, in the order in which people meet them."""
        return list(GROUPS[self.group].verbs) if self.group else [*(name for name in VERBS if " " not in name), *GROUPS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Import and return the verb, or return the group; None for an unknown name."""
        if not self.group and cmd_name in GROUPS:
            return _group(cmd_name)
        words = f"{self.group} {cmd_name}".lstrip()
        if words not in VERBS:
            return None
        verb = VERBS[words]
        module = import_module(verb.module)
        app = getattr(module, "app", None)
        if app is None:
            app = new_app()
            app.command(cmd_name, cls=VerbCommand)(getattr(module, function_of(cmd_name)))
        command = typer.main.get_command(app)
        if not hasattr(command, "commands"):
            finish(command, verb)
        _refuse_empty(command)
        with_hints(command)
        return command

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs, then the options."""
        self.format_commands(ctx, formatter)
        records = [parameter.get_help_record(ctx) for parameter in self.get_params(ctx)]
        with formatter.section(paint("Options")):
            formatter.write_dl([(paint(name, "cyan"), text) for name, text in filter(None, records)])

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the verbs, section by section."""
        if self.group:
            sections = {"Commands": {name: verb.help for name, verb in GROUPS[self.group].verbs.items()}}
        else:
            sections = {title: {name: verb.help for name, verb in verbs.items()} for title, verbs in FRONT.items()}
            sections["More"] |= {name: group.help for name, group in GROUPS.items()}
        width = max(len(name) for rows in sections.values() for name in rows)
        for title, rows in sections.items():
            with formatter.section(paint(title)):
                formatter.write_dl([(paint(f"{name:<{width}}", "cyan"), help) for name, help in rows.items()])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; a group hides no options, so ``--help-all`` is its help."""
        return super().parse_args(ctx, ["--help", *args[1:]] if args[:1] == ["--help-all"] else args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb that the first word names; an unknown word is an error that names what was meant."""
        if args and args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            here = f" in {self.group!r}" if self.group else ""
            meant = meant_by(args[0], self.group) or f". See 'feedmill {self.group} --help'.".replace("  ", " ")
            ctx.fail(f"there is no verb {args[0]!r}{here}{meant}")
        return super().resolve_command(ctx, args)


def _group(name: str) -> Words:
    """Return the command of a group of verbs."""
    group = Words(name=name, help=GROUPS[name].help, no_args_is_help=True, rich_markup_mode=None)
    group.group = name
    group.epilog = f"Options of a command:  feedmill {name} COMMAND --help"
    return group


class VerbGroup(Words):
    """The front page, which reports errors."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context. Terminals without codes for colors get none, and so do people who want none."""
        if os.environ.get("TERM") == "dumb" or os.environ.get("NO_COLOR"):
            extra.setdefault("color", False)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. Report an error as one message and an exit status; see `main`."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # flush here, where a closed pipe is still caught
            return result
        except FeedmillError as error:
            if debugging():
                raise
            fail(error, as_json=json_wanted(ctx))
            ctx.exit(1)
        except (KeyboardInterrupt, typer.Abort) as error:
            if isinstance(error, typer.Abort):
                if not isinstance(error.__context__, KeyboardInterrupt):  # the answer was no, or the input ended
                    raise
                typer.echo(err=True)  # after the question
            typer.echo("interrupted; finished work is kept", err=True)
            ctx.exit(_INTERRUPTED)
        except BrokenPipeError:
            # The reader (`head`, a pager) closed the pipe. Python flushes stdout again at exit: send that to /dev/null.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)
        except Exception as error:  # invalid input must not show a traceback
            usage = isinstance(error, typer.Exit | typer.Abort) or hasattr(error, "exit_code")  # the parser's own
            if usage or debugging():
                raise
            fail(_unforeseen(error), as_json=json_wanted(ctx))
            ctx.exit(1)


def _unforeseen(error: Exception) -> FeedmillError:
    """Return the error for an unhandled exception: an error of the operating system, or a defect of Feedmill."""
    if isinstance(error, OSError) and error.errno is not None:  # without errno, a library raised it
        from feedmill.storage.base import storage_error

        return storage_error(error)
    return defect_of(error)


def _refuse_empty(command: Any) -> None:
    """Make a command and its subcommands reject empty arguments.

    An empty argument is usually an unset shell variable, and as a path it would mean the current folder.
    """
    for inner in getattr(command, "commands", {}).values():
        _refuse_empty(inner)
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.callback = partial(_not_empty, parameter.callback)


def _not_empty(known: Any, ctx: Any, parameter: Any, value: Any) -> Any:
    if value == "" or (isinstance(value, list | tuple) and "" in value):
        raise typer.BadParameter("the argument is empty", ctx, parameter)
    return value if known is None else known(ctx, parameter, value)


def new_app(*, completes: bool = False, **settings: Any) -> typer.Typer:
    """Return a `typer.Typer` with the settings of this program: plain help and tracebacks (rich is slow to import)."""
    return typer.Typer(
        add_completion=completes,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
        **settings,
    )


app = new_app(
    completes=True,
    cls=VerbGroup,
    no_args_is_help=True,
    epilog="Options of a command:  feedmill COMMAND --help",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"feedmill {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Prepare, curate, tokenize, blend and load training data, and trace what a run saw."""


def main() -> None:
    """Run the console command.

    Exit status: 0 success, 1 an error or findings, 2 wrong usage, 130 interrupted.
    """
    # No verb multiplies matrices. Without OpenBLAS threads, workers can be forked (see `feedmill.jobs.processes`).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    keep_freed_memory(_KEPT_MEMORY)
    _open_missing_streams()
    if isinstance(sys.stdout, TextIOWrapper):  # data may hold characters that this terminal cannot encode
        codecs.register_error("feedmill", _shown)
        sys.stdout.reconfigure(errors="feedmill")
    try:
        app(prog_name="feedmill")
    except SystemExit as asked:
        if asked.code == _INTERRUPTED:
            _interrupt()
        raise
    except OSError as error:  # outside of a verb: the help or a message about wrong usage could not be written
        fail(_unforeseen(error))
        sys.exit(1)


def _open_missing_streams() -> None:
    """Connect standard streams that were closed (`<&-` in a shell, some launchers) to the null device.

    A new file has the lowest free descriptor, which is that of the stream: no file of a dataset gets it later.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _interrupt() -> NoReturn:
    """End the process without waiting for its threads: one of them may wait for a server that does not answer.

    Workers that are left, which the functions for the exit would wait for, are ended.
    """
    from multiprocessing import active_children

    from feedmill.jobs.processes import end_processes

    end_processes(active_children())
    atexit._run_exitfuncs()
    _leave(_INTERRUPTED)


def end(asked: SystemExit) -> NoReturn:
    """End the process as Python does, with its threads and its functions for the exit, but keep its memory.

    Python takes 0.03 s to free what a short command has loaded. Under a debugger or a profiler, which report after the
    program, the process ends as usual.
    """
    monitors = getattr(sys, "monitoring", None)  # since 3.12
    watched = sys.gettrace() or sys.getprofile() or (monitors and any(map(monitors.get_tool, range(6))))
    if watched or sys.flags.interactive or not isinstance(asked.code, int | None):
        raise asked
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are no daemons, as Python does
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        raise asked from None  # Python reports what could not be written
    _leave(asked.code or 0)


def _leave(status: int) -> NoReturn:
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _shown(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return the replacement for characters that cannot be encoded: the raw bytes of a file name, or escapes."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)
