"""``python -m millwheel``: the command line."""

from millwheel.cli.main import main

if __name__ == "__main__":
    main()
