"""Boards: which one the measuring process may see, and how it describes the one that it found."""

import hashlib
import os
from collections.abc import Callable

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from tuner import errors

DEVICE_FIELDS = tuple(_C.Device.known("h200").as_dict())


def choose_visible_device(ordinal: int) -> str:
    """Return CUDA_VISIBLE_DEVICES for a child that sees only device `ordinal` of those that this process may see.

    Raises: UsageError when there is no such device, TunerError when there is none at all.
    """
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        count = count_visible_devices()
        if not count:
            raise errors.TunerError(
                "this process sees no CUDA GPU, and to measure takes one; `python -m tuner doctor` says why. Without"
                " one work `sweep --dry-run`, `ab --compile-only`, `select --explain` and `warmup --device`"
            )
        if ordinal >= count:
            raise errors.UsageError(f"--device {ordinal}: this machine has {count} GPUs, counted from 0; name another")
        return str(ordinal)
    visible = [entry.strip() for entry in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if entry.strip()]
    if len(set(visible)) != len(visible):
        raise errors.UsageError("CUDA_VISIBLE_DEVICES names a device twice: name each once")
    if not 0 <= ordinal < len(visible):
        raise errors.UsageError(f"--device {ordinal}: CUDA_VISIBLE_DEVICES shows {len(visible)} devices; name another")
    return visible[ordinal]


def choose_ordinals(gpus: str, count: Callable[[], int] | None = None) -> tuple[int, ...]:
    """Return the devices that --gpus names: "all" of those that this process may see, or numbers such as "0,1".

    `count` says how many there are. Raises: UsageError.
    """
    if gpus == "all":
        number = (count or count_visible_devices)()
        if not number:
            raise errors.UsageError("--gpus all: this process sees no GPU; see `python -m tuner doctor`")
        return tuple(range(number))
    parts = [part.strip() for part in gpus.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 4 for part in parts):
        raise errors.UsageError(f"--gpus {gpus}: must be all, or numbers such as 0,1")
    if len(set(map(int, parts))) != len(parts):
        raise errors.UsageError(f"--gpus {gpus}: names a GPU twice; name each once")
    return tuple(map(int, parts))


def count_visible_devices() -> int:
    """Return how many devices this process may see, without a context on any."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return len([entry for entry in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if entry.strip()])
    import torch  # asks NVML

    return torch.cuda.device_count()


def describe_device(
    device: _C.Device, uuid: str, memory_bytes: int | None = None, power_limit_w: float | None = None
) -> dict:
    """Return a board as the measuring process announces it and the database stores it; of its UUID only the hash."""
    return device.as_dict() | {
        "compute_capability": list(device.compute_capability),
        "memory_bytes": memory_bytes,
        "power_limit_w": power_limit_w,
        "uuid_hash": hashlib.sha256(uuid.encode()).hexdigest(),
    }


def read_device(described: dict) -> _C.Device:
    """Return the device of a description that describe_device made. Raises: TunerError for anything else."""
    try:
        fields = {name: described[name] for name in DEVICE_FIELDS}
        return _C.Device(**fields | {"compute_capability": tuple(fields["compute_capability"])})
    except (KeyError, TypeError, DeepGemmError) as error:
        raise errors.TunerError(f"the measuring process described no device: {error}") from error
