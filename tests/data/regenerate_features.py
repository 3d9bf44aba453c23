"""Write tests/data/features_frozen.json anew: python -m tests.data.regenerate_features

Refuses while the version that names what changed is still the recorded one.
"""

import sys

from tests.cpu.test_features_frozen import RECORD, compute, read, write


def main() -> int:
    """Write the record and return the exit code."""
    new, old = compute(), read() if RECORD.exists() else {}
    for name, version in (("shape", "FEATURES_VERSION"), ("heuristic", "HEURISTIC_VERSION")):
        if old and new[name]["version"] == old[name]["version"] and new[name]["sha256"] != old[name]["sha256"]:
            print(f"{name} features changed but {version} did not: raise it first", file=sys.stderr)
            return 1
    write(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
