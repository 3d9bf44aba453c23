"""Run `python -m tuner`, also installed as `deep-gemm-tuner`."""

import importlib.util
import os
import sys
import warnings
from types import ModuleType

from tuner import errors

#: What asks for a text only. The process then ends without a command having run.
TEXT_ONLY = ("--help", "--version")


def main() -> None:
    """Run the command line and end with its exit code; Ctrl-C says so, also while the packages are imported."""
    try:
        open_closed_streams()
        run()
    except KeyboardInterrupt:
        print(f"tuner: {errors.INTERRUPTED}", file=sys.stderr)
        sys.exit(errors.EXIT_INTERRUPTED)


def open_closed_streams() -> None:
    """Let streams that the caller closed lead nowhere: a file opened later would take their place, and get messages."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))


def run() -> None:
    """Run the command line of this process and end with its exit code."""
    if len(sys.argv) == 1 or any(word in TEXT_ONLY for word in sys.argv[1:]):
        use_bare_package()
    try:
        from tuner import cli
    except ModuleNotFoundError as error:
        print(f"tuner: {errors.explain_missing(error)}", file=sys.stderr)
        sys.exit(errors.EXIT_USAGE)
    warnings.showwarning = cli.show_warning
    sys.exit(cli.run(sys.argv[1:]))


def use_bare_package() -> None:
    """Let the native module and the descriptions of fields be imported without `deep_gemm` itself, which imports torch.

    Help texts need nothing else, and torch takes seconds.
    """
    found = None if "deep_gemm" in sys.modules else importlib.util.find_spec("deep_gemm")
    if found is not None:
        package = ModuleType("deep_gemm")
        package.__path__ = list(found.submodule_search_locations or ())
        sys.modules["deep_gemm"] = package


if __name__ == "__main__":
    main()
