"""``python -m feedmill``: the console command."""

import sys


def main() -> None:
    """Run the console command; see `feedmill.cli.app.main`. Ctrl-C during its imports shows no traceback either."""
    try:
        from feedmill.cli.app import main as command

        command()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
