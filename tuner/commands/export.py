"""python -m tuner export."""


def register(app) -> None:
    """Add `export` to the command line."""
