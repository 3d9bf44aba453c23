"""The command line `python -m tuner`: a thin layer over the library, with one module per command in `commands/`."""

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Collection
from inspect import getdoc

import typer

from deep_gemm.text import printable
from tuner import errors
from tuner.credentials import hide_credentials

#: Every command, with the sentence that the list of commands shows. A command's module is imported when it is called.
COMMANDS = {
    "sweep": "Measure configs on this GPU and record them. Run it again to resume.",
    "simulate": "Show how near searches of a space come to measuring everything, at equal budget.",
    "train": "Fit trees, guards and portfolio and write a training folder.",
    "evaluate": "Score the selector on problems that it did not see.",
    "export": "Write the artefact by which the library chooses configs. Exits with 1 if a gate is missed.",
    "select": "Print the config that the library would use. This needs no GPU.",
    "tune": "Measure one problem on this GPU and install its best config, for processes that start afterwards.",
    "refine": "Measure the selector's best few configs for the shapes of a file and install the winners.",
    "warmup": "Compile every kernel that these shapes need into the disk cache. With --device this needs no GPU.",
    "inspect": "Show what the database covers, how noisy it is, what is stale or failed, and what became slower.",
    "compare": "Compare two recorded sweeps on the problems and configs that both measured. Needs no GPU.",
    "report": "Write one HTML page about a database: speed, regret, coverage, noise, regressions.",
    "baseline": "Name the sweep or kernel hash that `compare` and `inspect` compare with.",
    "ab": "Compare two sets of kernels, or two configs, in one process on one GPU, with equal operands.",
    "bisect": "Find the first commit between GOOD and BAD whose kernel is slower than GOOD's on one problem.",
    "models": "List, show, verify, compare and remove selector artefacts.",
    "cache": "List and clear the compiled kernels on disk.",
    "doctor": "Check GPU, driver, compiler, cache, database and selector. Exits with 1 where something is wrong.",
    "db": "Create, upgrade, check, audit, merge and show tuning databases, and make snapshots to publish.",
}
#: How a config is printed, for the help of every command that prints one.
NOTATION = (
    "A config is printed as 64x96x128 s9 c1x1 k4 swap: tile of 64 rows, 96 columns and 128 of K, 9 stages, cluster of"
    " 1x1 CTAs, K split in 4 (left out: not split), operands swapped (left out: not)."
    " FP8 main loops add loop (unrolled), warp (one copies the block scales) and barrier (the warpgroups meet before a"
    " tile); FP8 and BF16 add (TMA adds onto D)."
)


class Shown:
    """What the options before the command ask for."""

    traceback = False


def show_version(is_asked: bool) -> None:
    """Print the package's version and end, where --version was given."""
    if is_asked:
        from deep_gemm._version import __version__

        print(f"deep_gemm {__version__}")
        raise typer.Exit


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


def make_app(loaded: Collection[str]) -> typer.Typer:
    """Return the command line with every command: those in `loaded` as they are, of the others only the sentence."""
    app = typer.Typer(
        name="tuner",
        help="Measure, record, learn and select kernel configurations.",
        epilog=NOTATION,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(root)
    for name, sentence in COMMANDS.items():
        if name in loaded:
            importlib.import_module(f"tuner.commands.{name}").register(app)
        else:
            app.command(name, help=sentence)(make_named(name))
    for command in app.registered_commands:
        command.help = command.help or join_lines(command.callback)
    return app


def join_lines(command: Callable | None) -> str:
    """Return a command's docstring with a line per paragraph, for a help text that is broken where the window ends."""
    return "\n\n".join(" ".join(part.split()) for part in (getdoc(command) or "").split("\n\n"))


def make_named(name: str) -> Callable[[], None]:
    """Return what stands in the list of commands for a command that is not loaded."""

    def named() -> None:
        raise RuntimeError(f"{name} was not loaded")

    return named


def check_installation() -> None:
    """Raise UsageError in a clone whose links git has written as text files, so that there is no `tuner.db`."""
    if importlib.util.find_spec("tuner.db") is None:
        raise errors.UsageError(
            "tuner/db is no symbolic link: run `git config core.symlinks true && git checkout -- tuner/db"
            " deep_gemm/models` in the clone, or install the package"
        )


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; errors are printed as one line."""
    return finish_output(run_command(arguments))


def finish_output(exit_code: int) -> int:
    """Write out what was printed and return `exit_code`, or EXIT_FAILURE where standard output does not take it."""
    try:
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError):  # the interpreter would try again when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_code or report(f"standard output: {error.strerror}", errors.EXIT_FAILURE)
    return exit_code


def run_command(arguments: list[str]) -> int:
    """Run one command line and return its exit code, with what it printed perhaps still to be written."""
    try:
        check_installation()
        called = next((word for word in arguments if not word.startswith("-")), "")
        result = make_app({called})(arguments, standalone_mode=False)  # 130 where the parser caught Ctrl-C
        return report_interrupt() if result == errors.EXIT_INTERRUPTED else errors.EXIT_OK
    except errors.TunerError as error:
        return report(error, error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return report_interrupt()
    except typer.Exit as error:
        return error.exit_code
    except ModuleNotFoundError as error:
        return report(errors.explain_missing(error), errors.EXIT_USAGE)
    except Exception as error:
        return report_unexpected(error)


#: Characters of an error's line, which may quote a file.
MAX_LINE = 2000


def report(error: object, exit_code: int) -> int:
    """Print `error` as one line on standard error and return `exit_code`; with --debug re-raise."""
    if Shown.traceback and isinstance(error, Exception):
        raise error
    line = printable(" ".join(hide_credentials(str(error)).split()), MAX_LINE)
    if line:  # without a command the parser has printed the help and has nothing to add
        print(f"tuner: {line}", file=sys.stderr)
    return exit_code


def show_warning(message: Warning | str, *where: object, **options: object) -> None:
    """Print a warning as one line on standard error: users of a command have not written the line that warned."""
    line = printable(" ".join(hide_credentials(str(message)).split()), MAX_LINE)
    print(f"tuner: warning: {line}", file=sys.stderr)


def report_interrupt() -> int:
    """Say that Ctrl-C ended the command."""
    return report(errors.INTERRUPTED, errors.EXIT_INTERRUPTED)


def report_unexpected(error: Exception) -> int:
    """Report usage errors of the argument parser with exit code 2 and anything else with 1."""
    format_message = getattr(error, "format_message", None)
    if format_message is not None and hasattr(error, "exit_code"):
        return report(format_message(), errors.EXIT_USAGE)
    return report(error if Shown.traceback else f"{type(error).__name__}: {error}", errors.EXIT_FAILURE)
