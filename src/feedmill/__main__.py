"""``python -m feedmill``: the console command."""

import gc
import sys


def main() -> None:
    """Run the console command; see `feedmill.cli.app.main`. Ctrl-C during its imports shows no traceback either."""
    # Commands are short and create few reference cycles. Collecting rarely, from the imports on, saves 0.1 s.
    gc.set_threshold(100_000, 50, 50)
    try:
        from feedmill.cli.app import end
        from feedmill.cli.app import main as command

        try:
            command()
        except SystemExit as asked:
            end(asked)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
