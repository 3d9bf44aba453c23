"""The command line `python -m tuner`: a thin layer over the library, with one module per command in `commands/`."""

import functools
import importlib
import sys

import typer

import deep_gemm
from tuner import errors

COMMANDS = ("sweep", "simulate", "train", "evaluate", "export", "select", "warmup", "inspect", "ab", "bisect", "db")

app = typer.Typer(
    name="tuner",
    help="Measure, record, learn and select kernel configurations.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Shown:
    """What the options before the command ask for."""

    traceback = False


def show_version(is_asked: bool) -> None:
    """Print the package's version and end, where --version was given."""
    if is_asked:
        print(f"deep_gemm {deep_gemm.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=show_version, is_eager=True, help="Print the package's version."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error instead of one line."),
) -> None:
    """Measure, record, learn and select kernel configurations.

    Example: python -m tuner select 64 2112 7168 --explain
    """
    Shown.traceback = debug


@functools.cache
def register_commands() -> None:
    """Add every command of COMMANDS to the app, at the first call."""
    for name in COMMANDS:
        importlib.import_module(f"tuner.commands.{name}").register(app)


def check_installation() -> None:
    """Raise UsageError in a clone whose links git has written as text files, so that there is no `tuner.db`."""
    try:
        importlib.import_module("tuner.db")
    except ModuleNotFoundError as error:
        if error.name != "tuner.db":
            raise
        raise errors.UsageError(
            "tuner/db is no symbolic link: run `git config core.symlinks true && git checkout -- tuner/db"
            " deep_gemm/models` in the clone, or install the package"
        ) from error


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; errors are printed as one line."""
    try:
        check_installation()
        register_commands()
        app(arguments, standalone_mode=False)
        return errors.EXIT_OK
    except errors.TunerError as error:
        return report(error, error.exit_code)
    except KeyboardInterrupt:
        return report("interrupted; everything committed so far is kept", errors.EXIT_INTERRUPTED)
    except typer.Exit as error:
        return error.exit_code
    except Exception as error:
        return report_unexpected(error)


def report(error: object, exit_code: int) -> int:
    """Print `error` as one line on standard error and return `exit_code`; with --debug re-raise."""
    if Shown.traceback and isinstance(error, Exception):
        raise error
    line = " ".join(str(error).split())
    if line:  # without a command the parser has printed the help and has nothing to add
        print(f"tuner: {line}", file=sys.stderr)
    return exit_code


def report_unexpected(error: Exception) -> int:
    """Report usage errors of the argument parser with exit code 2 and anything else with 1."""
    format_message = getattr(error, "format_message", None)
    if format_message is not None and hasattr(error, "exit_code"):
        return report(format_message(), errors.EXIT_USAGE)
    return report(error if Shown.traceback else f"{type(error).__name__}: {error}", errors.EXIT_FAILURE)


def main() -> None:
    """Entry point of `python -m tuner` and `deep-gemm-tuner`."""
    sys.exit(run(sys.argv[1:]))
