"""python -m tuner doctor: what the library finds on this machine, and who would choose."""

import json
import textwrap
from dataclasses import asdict

from deep_gemm.text import printable
from tuner import errors
from tuner.commands.options import AsJson
from tuner.commands.tables import WIDTH

#: Columns of the names of parts and of their states.
INDENT = 18


def register(app) -> None:
    """Add `doctor` to the command line."""
    app.command("doctor")(doctor)


def doctor(as_json: AsJson = False) -> None:
    """Check GPU, driver, compiler, cache, database and selector. Exits with 1 where something is wrong.

    Works without a GPU, which is no fault: calls on CPU tensors do without, and so do all commands that measure
    nothing.

    Example: python -m tuner doctor
    """
    from tuner.ship import diagnosis

    found = diagnosis.diagnose()
    faults = [finding.part for finding in found if finding.state == diagnosis.FAULT]
    if as_json:
        print(json.dumps({"findings": [asdict(finding) for finding in found], "faults": faults}, indent=1))
    else:
        for finding in found:
            print_finding(finding)
    if faults:
        raise errors.TunerError(f"{len(faults)} of {len(found)} parts need attention: {', '.join(faults)}")


def print_finding(finding) -> None:
    """Print one part: its name, its state, and what was found."""
    head = f"{finding.part:<11}{finding.state:<{INDENT - 11}}"
    lines = textwrap.wrap(printable(finding.found), WIDTH - INDENT, break_on_hyphens=False)
    lines += textwrap.wrap(printable(f"-> {finding.remedy}"), WIDTH - INDENT) if finding.remedy else []
    print(head + ("\n" + " " * INDENT).join(lines))
