"""python -m tuner sweep."""


def register(app) -> None:
    """Add `sweep` to the command line."""
