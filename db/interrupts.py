"""Ctrl-C and transactions: an interrupt waits until the transaction has ended.

Python raises KeyboardInterrupt between any two steps of the main thread. Inside the driver's or SQLAlchemy's own code
that could lose the store's only connection, and the sweep could then not even be marked as interrupted.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Let the first Ctrl-C during the `with` take effect when it ends; a second one takes effect at once.

    Other threads never see one, and need nothing.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = []

    def remember(number, frame) -> None:
        seen.append(number)
        if len(seen) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if seen:
            handler(signal.SIGINT, None)
