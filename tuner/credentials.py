"""Keeps passwords out of messages, logs and files: the URL of a database or storage may hold one."""

import re

#: A password among parameters: in quotes with all that these hold, also where they do not end.
PARAMETER = re.compile(
    r"""((?:password|passwd)=)(?:'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$)|[^&\s]*)""", re.IGNORECASE
)
#: What stands before the host of a URL, also where a password has an @, a slash or a space that is not escaped. The
#: first that fits: user and password up to the last `@host/`; up to the last @, which a path does not follow; what
#: stands before the first slash; or before any @.
AUTHORITY = re.compile(
    r"(?<=://)(?:"
    r"[^\s/:]*:(?!\d+(?:[/?\s]|$))(?:(?!://).)*(?=@[^\s@/]+/)"
    r"|[^\s/:@]*:(?!\d+/)(?:(?!://)[^@\n])*(?:@[^\s@]*)*(?=@)"
    r"|[^/\s]*(?=@)"
    r"|[^/\s](?:(?!://)\S)*(?=@)"
    r")"
)


def hide_credentials(text: str) -> str:
    """Return a text without the user and the password of any URL in it."""
    return AUTHORITY.sub("***", PARAMETER.sub(r"\1***", text))
