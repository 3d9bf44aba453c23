"""Errors of the tuner, with the exit codes of the command line."""

from tuner.credentials import hide_credentials

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 3
EXIT_INTEGRITY = 4
EXIT_INTERRUPTED = 130
#: What Ctrl-C ends with.
INTERRUPTED = "interrupted; everything committed so far is kept"


class TunerError(Exception):
    """A failure that is reported in one line, without passwords; the process then ends with `exit_code`."""

    exit_code = EXIT_FAILURE

    def __init__(self, message: object = ""):
        super().__init__(hide_credentials(str(message)))


class UsageError(TunerError):
    """A wrong flag or value; the message names the flag and its range."""

    exit_code = EXIT_USAGE


class InconclusiveError(TunerError):
    """Not enough data to answer."""

    exit_code = EXIT_INCONCLUSIVE


class NothingMeasuredError(TunerError):
    """None of a sweep's problems could be measured."""


class IntegrityError(TunerError):
    """A database or file that must not be trusted."""

    exit_code = EXIT_INTEGRITY


class StoreError(TunerError):
    """The tuning database, or a file that replaces another, could not be opened or written; what was there before is
    intact.
    """


class DiskFullError(StoreError):
    """The disk or its quota is full; nothing of the transaction was written."""


def check_measured(summary: dict) -> None:
    """Raise TunerError where a sweep, as its summary says, or `refine`, as its report does, could not measure some of
    its problems. To be called when the rest has been done and shown.
    """
    for each in summary.get("sweeps", [summary]):
        if failed := each.get("failed"):
            problem, reason = next(iter(failed.items()))
            raise TunerError(f"{len(failed)} of {each['problems']} problems could not be measured; {problem}: {reason}")


def explain_missing(error: ModuleNotFoundError) -> str:
    """Return what to do about a module that is not installed: nearly always a part of the extra `tuner`."""
    return f'{error.name}: this module is not installed; run pip install "deep_gemm[tuner]" (in a clone ".[tuner]")'
