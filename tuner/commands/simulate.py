"""python -m tuner simulate."""


def register(app) -> None:
    """Add `simulate` to the command line."""
