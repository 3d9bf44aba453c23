"""Text of files and callers in messages: it may be of any length, and may hold what a terminal would obey."""

MAX_CHARACTERS = 300
#: Of a warning, which may name a file and what is wrong with it.
MAX_MESSAGE = 1000


def printable(text: object, limit: int = MAX_CHARACTERS) -> str:
    """Return str(text) with control characters and the like escaped, cut in the middle beyond `limit` characters."""
    shown = str(text)
    if len(shown) > limit:
        shown = f"{shown[: limit // 2]}...{shown[-(limit // 2) :]}"
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in shown)
