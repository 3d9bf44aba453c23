"""python -m tuner evaluate."""


def register(app) -> None:
    """Add `evaluate` to the command line."""
