"""python -m tuner train."""


def register(app) -> None:
    """Add `train` to the command line."""
