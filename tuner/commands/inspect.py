"""python -m tuner inspect."""


def register(app) -> None:
    """Add `inspect` to the command line."""
