"""Write the records of frozen features in tests/data anew: python -m tests.data.regenerate_features

Refuses while the version that names what changed is still the recorded one.
"""

import sys

from tests.cpu.core.test_features_frozen import RECORDS, compute, read, write


def find_unnamed_change(new: dict, old: dict) -> str:
    """Return the name of the version that must be raised before `new` may replace `old`, or ''."""
    if old and new["shape"]["version"] != old["shape"]["version"]:
        return ""  # which names a change of any feature
    kept = [op for op, revision in new["revisions"].items() if old and old["revisions"].get(op) == revision]
    for name, version in (("shape", "FEATURES_VERSION"), ("heuristic", "heuristic_version")):
        is_same = old and new[name]["version"] == old[name]["version"]
        if is_same and any(new[name]["sha256"][op] != old[name]["sha256"][op] for op in kept):
            return f"{version} or estimate_revision"
    return ""


def main() -> int:
    """Write the records and return the exit code."""
    records = {kind: compute(kind) for kind in RECORDS}
    for kind, new in records.items():
        if version := find_unnamed_change(new, read(kind) if RECORDS[kind].exists() else {}):
            print(f"features of {kind} problems changed but {version} did not: raise it first", file=sys.stderr)
            return 1
    for kind, new in records.items():
        write(kind, new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
