"""DeepGEMM's Triton kernels for A100 GPUs, whose names end in `_tl`: any such name can be imported, and raises when it
is called.
"""

from collections.abc import Callable

from deep_gemm.errors import DeviceError


def __getattr__(name: str) -> Callable:
    if not name.endswith("_tl"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def refuse(*arguments: object, **options: object) -> None:
        raise DeviceError(
            f"{name}(): a Triton kernel for A100, and this package has the kernels of SM90; call the op of the name"
            " without _tl on an SM90 GPU."
        )

    return refuse
