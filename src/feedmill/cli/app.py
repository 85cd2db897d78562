"""The `feedmill` command: lazily imported verbs, and errors reported as one message.

To add a verb, add a file to this package and a row to `VERBS`. The file defines a function of the verb's name, or a
`typer.Typer` called `app` if the verb has subcommands.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import gc
import os
import sys
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from feedmill import __version__
from feedmill.cli.output import fail, json_wanted
from feedmill.cli.renamed import VerbCommand
from feedmill.errors import FeedmillError, defect_of

DEBUG = "FEEDMILL_DEBUG"
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


class Verb(NamedTuple):
    """Module of a verb, its line in the help, and its function where that cannot have the verb's name."""

    module: str
    help: str
    hidden: bool = False
    function: str = ""


VERBS: dict[str, Verb] = {  # in the order of the help
    "demo": Verb("feedmill.cli.demo", "Run the main job on sample data: prepare, load, kill, resume."),
    "import": Verb("feedmill.cli.import_", "Make documents or a dataset from files.", function="import_"),
    "info": Verb("feedmill.cli.info", "Describe a dataset: format, samples, shards, splits, type."),
    "preview": Verb("feedmill.cli.preview", "Show samples as text, and their images as one picture."),
    "check": Verb("feedmill.cli.check", "Find truncated shards, changed data and wrong indices."),
    "repair": Verb("feedmill.cli.repair", "Remove incomplete samples, report them, index the rest."),
    "prepare": Verb("feedmill.cli.prepare", "Index a dataset, make splits, set the sample type."),
    "prepare-media": Verb("feedmill.cli.prepare_media", "Store sizes and durations of media in the index."),
    "reshard": Verb("feedmill.cli.reshard", "Write samples to shards of another size, number or order."),
    "append": Verb("feedmill.cli.append", "Add samples to a prepared dataset, as new shards."),
    "delete": Verb("feedmill.cli.delete", "Delete samples by key; rewrites only their shards."),
    "add-parts": Verb("feedmill.cli.add_parts", "Add parts from another dataset with the same keys."),
    "mount": Verb("feedmill.cli.mount", "Mount a dataset as a read-only file system."),
    "tag": Verb("feedmill.cli.tag", "Compute attributes of documents: length, quality, privacy."),
    "dedupe": Verb("feedmill.cli.dedupe", "Mark duplicates: documents, paragraphs, n-grams."),
    "neardedupe": Verb("feedmill.cli.neardedupe", "Mark near-duplicates: MinHash, exact Jaccard, clusters."),
    "filter": Verb("feedmill.cli.filter", "Keep documents by attributes, length or index."),
    "stat": Verb("feedmill.cli.stat", "Show counts and distributions of documents and attributes."),
    "tokenize": Verb("feedmill.cli.tokenize", "Write token files: .pbin, .ds, Megatron-LM, Dolma."),
    "decode": Verb("feedmill.cli.decode", "Show documents of token files as text."),
    "run": Verb("feedmill.cli.run", "Run a pipeline of verbs; skip the steps that are up to date."),
    "convert": Verb("feedmill.cli.convert", "Convert a dataset to another format; compares every sample."),
    "plan": Verb("feedmill.cli.plan", "Show what a recipe yields: tree, weights, repeats, bytes."),
    "trace": Verb("feedmill.cli.trace", "Show what a step saw, or when a sample or document is seen."),
    "forget": Verb("feedmill.cli.forget", "Find documents in all that was made from them; list them."),
    "serve": Verb("feedmill.cli.serve", "Look at samples, steps and mixtures in a browser."),
    "report": Verb("feedmill.cli.report", "Write what serve shows to one HTML file."),
    "bench": Verb("feedmill.cli.bench", "Measure how fast a recipe loads on this machine."),
    "cache": Verb("feedmill.cli.cache", "List, fill or empty the cache of remote data."),
    "index": Verb("feedmill.cli.index", "Write the index of a JSONL or .pbin file."),
    "merge": Verb("feedmill.cli.merge", "Merge token files or JSONL files."),
    "shuffle": Verb("feedmill.cli.shuffle", "Shuffle documents, lines or chunks of tokens."),
    "split": Verb("feedmill.cli.split", "Split token files or JSONL files into parts."),
    "numbers": Verb("feedmill.cli.numbers", "Convert between tokens, samples and steps."),
    "mix": Verb("feedmill.cli.mix", "Old name of 'filter' for documents.", hidden=True),
    "modalities": Verb("feedmill.compat.modalities.cli", "Modalities' own data commands: index, pack, merge, shuffle."),
    "energon": Verb("feedmill.compat.energon.cli", "Energon's own commands: prepare, info, lint, preview."),
    "nanotron": Verb("feedmill.compat.nanotron.cli", "Nanotron's data tool: preprocess_data."),
    "vla": Verb("feedmill.compat.vla.cli", "VLA Foundry's data: manifests, statistics, windows."),
    "dolma": Verb("feedmill.compat.dolma.cli", "Dolma's own commands: tag, dedupe, mix, tokens, stat."),
}


def function_of(verb: str) -> str:
    """Return the name of a verb's function in its module."""
    return VERBS[verb].function or verb.replace("-", "_")


class VerbGroup(TyperGroup):
    """Command group over `VERBS` that imports a verb only when it runs."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return [name for name, verb in VERBS.items() if not verb.hidden]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Import and return the verb; None for an unknown name."""
        if cmd_name not in VERBS:
            return None
        module = import_module(VERBS[cmd_name].module)
        app = getattr(module, "app", None)
        if app is None:
            app = new_app()
            app.command(cmd_name, cls=VerbCommand)(getattr(module, function_of(cmd_name)))
        command = typer.main.get_command(app)
        _refuse_empty(command)
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items() if not verb.hidden])

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. Report an error as one message and an exit status; see `main`."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # flush here, where a closed pipe is still caught
            return result
        except FeedmillError as error:
            if os.environ.get(DEBUG) == "1":
                raise
            fail(error, as_json=json_wanted(ctx))
            ctx.exit(1)
        except KeyboardInterrupt:
            typer.echo("interrupted; finished work is kept", err=True)
            ctx.exit(130)
        except BrokenPipeError:
            # The reader (`head`, a pager) closed the pipe. Python flushes stdout again at exit: send that to /dev/null.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)
        except Exception as error:  # invalid input must not show a traceback
            usage = isinstance(error, typer.Exit | typer.Abort) or hasattr(error, "exit_code")  # the parser's own
            if usage or os.environ.get(DEBUG) == "1":
                raise
            fail(_unforeseen(error), as_json=json_wanted(ctx))
            ctx.exit(1)


def _unforeseen(error: Exception) -> FeedmillError:
    """Return the error for an unhandled exception: an error of the operating system, or a defect of Feedmill."""
    if isinstance(error, OSError) and error.errno is not None:  # without errno, a library raised it
        from feedmill.storage.os_errors import storage_error

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


def new_app(**settings: Any) -> typer.Typer:
    """Return a `typer.Typer` with the settings of this program: plain help and tracebacks (rich is slow to import)."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
        **settings,
    )


app = new_app(cls=VerbGroup, no_args_is_help=True)


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
    # Commands are short and create few reference cycles. Collecting rarely, and not at exit, saves 0.1 s.
    gc.set_threshold(100_000, 50, 50)
    # No verb multiplies matrices. Without OpenBLAS threads, workers can be forked (see `feedmill.jobs.processes`).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _keep_freed_memory()
    if isinstance(sys.stdout, TextIOWrapper):  # data may hold characters that this terminal cannot encode
        codecs.register_error("feedmill", _shown)
        sys.stdout.reconfigure(errors="feedmill")
    try:
        app(prog_name="feedmill")
    finally:
        gc.freeze()


def _shown(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return the replacement for characters that cannot be encoded: the raw bytes of a file name, or escapes."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)


def _keep_freed_memory() -> None:
    """Make glibc keep up to 64 MiB of freed memory, in this process and those it forks.

    Blocks of about a megabyte are allocated and freed often, and page faults on fresh pages are costly. Does nothing
    with other allocators.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, 64 << 20)
