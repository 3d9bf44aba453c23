"""python -m tuner select."""


def register(app) -> None:
    """Add `select` to the command line."""
