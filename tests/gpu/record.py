"""The record of a GPU run: one JSON file that says on what, of which tree, how many cases and what failed."""

from deep_gemm import _C
from deep_gemm.errors import CompileError
from deep_gemm.jit.build import get_cubin
from deep_gemm.jit.hashing import name_plain
from deep_gemm.jit.plain_kernels import PLAIN_KERNELS
from tuner.measure.stamp import SELECTOR, hash_selector, make_stamp

from .variants import MAIN, get_space
from .world import ALL_OPS

#: Notes that are summed over the shards; the others are the same in every shard.
ADDED_NOTES = ("jobs", "wall_s")


def get_compiler_versions(compilers: tuple[str, ...]) -> dict[str, str]:
    """Return the version of each compiler, read from a kernel that it built."""
    versions = {}
    for compiler in compilers:
        try:
            result = get_cubin(MAIN[0].problem(), get_space(MAIN[0], _C.get_device())[0], compiler)
            versions[compiler] = result.compiler_version
        except CompileError as error:  # the run goes on and reports every kernel that it misses
            versions[compiler] = str(error)[:200]
    return versions


def make_origin(compilers: tuple[str, ...]) -> dict:
    """Return the origin of a run: device, driver, toolkit, hashes, selector, compilers and date."""
    kernels, device = (*ALL_OPS, *map(name_plain, PLAIN_KERNELS)), _C.get_device()
    own = {SELECTOR: hash_selector(device.sku), "compilers": get_compiler_versions(compilers)}
    return make_stamp(device, kernels) | own


def make_section() -> dict:
    """Return an empty section of a record."""
    return {"jobs": 0, "cases": 0, "failed_jobs": 0, "seconds": 0.0}


def make_record(
    stamp: dict, sections: dict[str, dict], failures: list[str], *, shard: str, is_complete: bool, notes: dict
) -> dict:
    """Return the record of a run."""
    return {
        **stamp,
        "shard": shard,
        "complete": is_complete,
        "cases": sum(section["cases"] for section in sections.values()),
        "failures": failures,
        "sections": sections,
        "notes": notes,
    }


def merge_records(records: list[dict]) -> dict:
    """Join the records of all shards of one run into the record of the whole.

    Raises:
        ValueError: the shards are of different trees or devices, or some are missing.
    """
    first = records[0]
    for key in ("tree_hash", "kernel_hash", "sku", "driver", "torch", SELECTOR):
        if any(record.get(key) != first.get(key) for record in records):
            raise ValueError(f"{key} differs between the shards; run them again on one tree and machine")
    total = int(first["shard"].split("/")[1])
    if sorted(record["shard"] for record in records) != sorted(f"{index}/{total}" for index in range(1, total + 1)):
        raise ValueError(
            f"shards {[record['shard'] for record in records]}: expected each of 1/{total} to {total}/{total} once"
        )
    sections: dict[str, dict] = {}
    for record in records:
        for name, section in record["sections"].items():
            target = sections.setdefault(name, make_section())
            for key, value in section.items():
                target[key] = round(target[key] + value, 3)
    notes = {key: value for record in records for key, value in record["notes"].items()}
    notes |= {
        key: round(sum(record["notes"].get(key, 0) for record in records), 1) for key in ADDED_NOTES if key in notes
    }
    failures = [failure for record in records for failure in record["failures"]]
    stamp = {
        key: first[key] for key in first if key not in ("shard", "complete", "cases", "failures", "sections", "notes")
    }
    return make_record(
        stamp, sections, failures, shard="1/1", is_complete=all(record["complete"] for record in records), notes=notes
    )
