"""The options of `sweep` that name more than one GPU: of this host, or of a Dask cluster."""

import typer

from tuner import errors

GPUS = typer.Option(
    "", help="Measure on several GPUs at once, instead of --device: all, or numbers such as 0,1. Each takes problems."
)
SCHEDULER = typer.Option(
    "",
    help=(
        "Measure on the GPUs of a Dask cluster: tls://HOST:PORT. This process proposes and records; needs the extra"
        " distributed."
    ),
)
MIXED = typer.Option(
    False,
    help="With --gpus or --scheduler: allow GPUs of several kinds; every problem is then measured once for each kind.",
)


def choose_gpus(gpus: str, device: int, backend: str) -> tuple[int, ...]:
    """Return the devices that --gpus names, () where it is not given. Raises: UsageError."""
    from tuner.measure.devices import choose_ordinals

    if gpus and device:
        raise errors.UsageError(f"--gpus {gpus}: cannot be combined with --device {device}; name all GPUs by --gpus")
    return choose_ordinals(gpus, (lambda: 1) if backend == "simulated" else None) if gpus else ()


def check_mixed(mixed: bool, are_several_named: bool) -> bool:
    """Return whether GPUs of several kinds are allowed. Raises: UsageError where one GPU measures alone."""
    if mixed and not are_several_named:
        raise errors.UsageError("--mixed: only for --gpus or --scheduler; drop it, or name several GPUs")
    return mixed


def check_scheduler(address: str, are_gpus_named: bool) -> str:
    """Return the address of a Dask scheduler. Raises: UsageError for one without TLS, or beside GPUs of this host."""
    if address:
        from tuner.measure.remote import check_address

        check_address(address)
        if are_gpus_named:
            raise errors.UsageError(f"--scheduler {address}: its workers are the GPUs; drop --gpus and --device")
    return address
