"""python -m tuner db."""


def register(app) -> None:
    """Add `db` to the command line."""
