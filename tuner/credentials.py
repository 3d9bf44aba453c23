"""Keeps passwords out of messages, logs and files: the URL of a database or storage may hold one."""

import re

#: In a URL, what stands before the host, also where a password has an unescaped @ or slash; and passwords among the
#: parameters.
CREDENTIALS = re.compile(r"(?<=://)(?:[^/\s]*|[^@/\s][^@\s]*)(?=@)|(?<=password=)[^&\s]*", re.IGNORECASE)


def hide_credentials(text: str) -> str:
    """Return a text without the user and the password of any URL in it."""
    return CREDENTIALS.sub("***", text)
