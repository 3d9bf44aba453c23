"""What a sweep says at its end."""

import time
from dataclasses import asdict

from tuner.credentials import hide_credentials
from tuner.db.rows import Identity
from tuner.search import precompile


def describe_identity(identity: Identity) -> dict:
    """Return an identity for the summary, where the op kind is the key."""
    return {name: value for name, value in asdict(identity).items() if name != "op"}


def summarize(sweep, num_open: int) -> dict:
    """Return the summary of a finished Sweep that `--json` prints."""
    seconds = time.monotonic() - sweep.started
    compiled = {"compile": precompile.summarize(sweep.compiled, sweep.compile_seconds)} if sweep.compile_seconds else {}
    return compiled | {
        "identities": {op: describe_identity(identity) for op, identity in sweep.identities.items()},
        "database": hide_credentials(str(sweep.options.database)),
        "problems": len(sweep.options.problems),
        "already_measured": len(sweep.options.problems) - num_open,
        "measured": sweep.num_measured,
        "failed": sweep.failed,
        "remaining": num_open - sweep.num_measured - len(sweep.failed),
        "boards": len(sweep.lanes),
        "retired": sweep.retired,
        "statuses": dict(sweep.statuses),
        "phase_seconds": {name: round(value, 2) for name, value in sweep.phase_seconds.items()},
        "quarantined": {f"{op} {config}": reason for (op, config), reason in sweep.suspects.quarantined.items()},
        "seconds": round(seconds, 2),
        "seconds_per_problem": round(seconds / sweep.num_measured, 3) if sweep.num_measured else None,
    }
