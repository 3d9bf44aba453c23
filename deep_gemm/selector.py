"""The learned choice of a config, from the bytes of one artefact."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from deep_gemm import _C
from deep_gemm.arguments import shorten
from deep_gemm.artifact import (
    ARRAYS,
    DTYPES,
    METADATA,
    OP_METADATA,
    SIZES,
    check_members,
    exact_key,
    get_estimate_revision,
    read_artifact,
    refuse,
)
from deep_gemm.errors import ArgumentError, ProblemError
from deep_gemm.fields import OP_KINDS
from deep_gemm.older_kernels import SERVED, find_serving

_NUM_CONFIG_FIELDS = len(_C.CONFIG_FIELDS)


class Selector(_C.Selector):
    """The exact table, the trees and the guards of one artefact. Immutable, so threads share it freely.

    This class reads the file, checks its format and looks problems up by their keys. The native base class checks
    every index, tree and config, so that no walk can leave the arrays or run forever, and makes the choice.
    """

    def __init__(self, content: bytes):
        """Read an artefact's bytes.

        Raises: ModelError for anything that is not a well-formed artefact; ArgumentError for anything but bytes.
        """
        if type(content) is not bytes:
            raise ArgumentError(f"content of type {type(content).__name__}: must be bytes; pass what the file holds")
        metadata, arrays = read_artifact(content)
        check_members(metadata, METADATA, "the metadata")
        if len(arrays) != len(ARRAYS) * len(metadata["ops"]):
            refuse(f"{len(arrays)} arrays: every op kind must have exactly its {len(ARRAYS)}")
        super().__init__(
            metadata["sku"],
            metadata["sm_count"],
            {op: describe_op(op, members, arrays) for op, members in metadata["ops"].items()},
            stale_reason="" if metadata["stale"] is None else f"stale: {metadata['stale']}",
            has_own_features=metadata["features_version"] == _C.FEATURES_VERSION,
            has_own_heuristic=metadata["heuristic_version"] == _C.heuristic_version(metadata["sku"]),
        )
        self._metadata = metadata
        #: Hashes that stand for themselves, whatever the op kind: nearly all that a new choice comes with.
        self._plain_hashes = {members["kernel_hash"] for members in metadata["ops"].values()} - {
            current for current, *_ in SERVED.values()
        }

    @property
    def metadata(self) -> dict:
        """The artefact's metadata: deep_gemm.artifact.METADATA says what it holds."""
        return self._metadata

    def quarantined(self, op: str) -> "list[_C.Config]":
        """Return the configs of an op kind that are never chosen. Raises: ModelError where the op kind is missing."""
        configs, entries = self.configs(op), map(split_quarantined, self._metadata["ops"][op]["quarantined"])
        return [configs[index] for index, variants in entries if not variants]

    def is_banned(self, problem: "_C.Problem", config: "_C.Config") -> bool:
        """Return whether a config is in quarantine for the problem's variant; not where the op kind is missing."""
        members = self._metadata["ops"].get(problem.op)
        if not members or not members["quarantined"]:
            return False
        configs, identity = self.configs(problem.op), _C.kernel_identity(problem)
        return any(
            configs[index] == config and identity not in map(_C.Problem.from_json, variants)
            for index, variants in map(split_quarantined, members["quarantined"])
        )

    def choose(
        self, problem: "_C.Problem", device: "_C.Device", mode: str = "auto", kernel_hash: str = ""
    ) -> "_C.Choice":
        """Return a choice that is legal on `device`: the heuristic's wherever a guard refuses the selector's.

        `mode`: 'auto', or 'model', which leaves out the exact table. `kernel_hash`: that of the kernels that will run;
        '' means unknown, which is no mismatch. Kernels that the artefact's own choose for match, too (older_kernels).

        Raises: DeviceError where no config is legal; ArgumentError for another mode.
        """
        if mode not in ("auto", "model"):
            raise ArgumentError(f"mode = {shorten(mode)}: must be 'auto' or 'model'; pass one of them.")
        if kernel_hash not in self._plain_hashes:
            kernel_hash = self._find_serving(problem.op, kernel_hash)
        choice = self.choose_config(problem, device, kernel_hash, exact_key(problem) if mode == "auto" else None)
        if mode == "model" or choice.source == "exact" or not problem.batch_invariant:
            return choice
        # Measured best of more configs, so also of those that do not split K where it is one of them.
        plain = _C.Problem(**(problem.as_dict() | {"batch_invariant": False}))
        measured = self.choose_config(problem, device, kernel_hash, exact_key(plain))
        return measured if measured.source == "exact" else choice

    def find_fault(self, op: str, kernel_hash: str) -> str:
        """Return why nothing of an op kind is used with the kernels of `kernel_hash`, or its trees are not; else ''."""
        return super().find_fault(op, self._find_serving(op, kernel_hash))

    def _find_serving(self, op: str, kernel_hash: str) -> str:
        members = self._metadata["ops"].get(op)
        return find_serving(op, kernel_hash, members["kernel_hash"]) if members else kernel_hash


def describe_op(op: str, members: Any, arrays: Mapping[str, np.ndarray]) -> dict:
    """Return the metadata and the arrays of an op kind by name, checked against their descriptions."""
    if isinstance(members, dict):
        members = {"estimate_revision": get_estimate_revision(members)} | members
    check_members(members, OP_METADATA, f"op kind {ascii(op)[:32]}")
    own = {name: arrays.get(f"{op}/{name}") for name in ARRAYS}
    check_shapes(own, {"fields": _NUM_CONFIG_FIELDS})
    entries = [split_quarantined(entry) for entry in members["quarantined"]]
    return (
        members
        | own
        | {
            "has_own_estimate": op in OP_KINDS and members["estimate_revision"] == _C.estimate_revision(op),
            "quarantined": [index for index, _ in entries],
            "built": [[read_variant(op, text) for text in variants] for _, variants in entries],
        }
    )


def split_quarantined(entry: int | list) -> tuple[int, list[str]]:
    """Return the index of a config in quarantine, and the variants that it may be chosen for."""
    return (entry[0], entry[1:]) if isinstance(entry, list) else (entry, [])


def join_quarantined(index: int, variants: list[str]) -> int | list:
    """Return the entry of a config in quarantine."""
    return [index, *variants] if variants else index


def read_variant(op: str, text: str) -> "_C.Problem":
    """Return the problem that `text` describes. Raises: ModelError where it describes none."""
    try:
        return _C.Problem.from_json(text)
    except ProblemError as error:
        refuse(f"op kind {ascii(op)[:32]}: quarantined: {error}")


def check_shapes(arrays: Mapping[str, np.ndarray | None], sizes: dict[str, int]) -> None:
    """Raise ModelError unless all arrays are there, with the dtype of ARRAYS and with sizes that agree.

    `sizes`: the sizes known beforehand, by dimension; the others are added.
    """
    for name, (dtype, dimensions, _) in ARRAYS.items():
        array = arrays[name]
        if array is None:
            refuse(f"array {name} is missing")
        if array.dtype != DTYPES[dtype] or array.ndim != len(dimensions):
            refuse(f"array {name} has the wrong dtype or number of dimensions: must be {dtype} {list(dimensions)}")
        for dimension, size in zip(dimensions, array.shape, strict=True):
            minimum, maximum = SIZES[dimension]
            if size != sizes.setdefault(dimension, size) or not minimum <= size <= maximum:
                refuse(
                    f"array {name} has the wrong shape {list(array.shape)}: {dimension} must be {minimum}..{maximum},"
                    f" the same in every array; here {sizes[dimension]}"
                )
