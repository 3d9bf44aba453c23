"""Run `python -m tuner`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it with a word, also while the packages are imported."""
    try:
        from tuner.cli import run

        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        print("tuner: interrupted; everything committed so far is kept", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
