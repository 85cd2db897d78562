"""``python -m feedmill``: the console command."""

from feedmill.cli.app import main

if __name__ == "__main__":
    main()
