"""A World of the GPU suite on the CPU: kernels that multiply in torch, right or wrong as a test wants, on a described
H200.
"""

from types import SimpleNamespace

import torch

from deep_gemm import _C
from deep_gemm.numerics import widen
from tests.fakes.grouped_kernel import FakeGroupedKernel
from tests.gpu.grouped_variants import GROUPED_OPS
from tests.gpu.world import World


class FakeKernel:
    """_C.Kernel: the rounded product of the dequantised operands; `fault(kernel, d)` spoils it afterwards."""

    max_clusters, local_bytes = 0, 0

    def __init__(self, problem, config, fault=None):
        self.problem, self.config, self.fault, self.count = problem, config, fault, 0

    def launch(
        self, a, scale_a, b, scale_b, d, c=None, *, num_sms=0, alpha=1.0, beta=1.0, head_splits=None, stream=None
    ) -> None:
        """Multiply at once; num_sms and stream change nothing here."""
        assert (c is None) == (self.problem.c_mode in ("none", "head_split")) and (head_splits is None) == (
            self.problem.c_mode != "head_split"
        )
        assert (scale_a is None) == (scale_b is None) == (self.problem.op == "bf16_gemm")
        result = alpha * (widen(a, scale_a, torch.float64) @ widen(b, scale_b, torch.float64).T)
        result = result if c is None else result + beta * c.double()
        if head_splits is None:
            d.copy_(result)
        else:
            left, middle, right = head_splits
            columns = torch.arange(b.shape[0])
            d[:, columns + (columns + right) // (left + right) * middle] = result.to(d.dtype)
        self.count += 1
        if self.fault is not None:
            self.fault(self, d)


class FakeWorld(World):
    """A World without a GPU; `fault` is given to every kernel, `loaded` are (first, second) of those so far."""

    def __init__(self, fault=None, spread: int = 16):
        self.fault, self.loaded = fault, []
        super().__init__("cpu", spread)

    def _get_device(self) -> "_C.Device":
        return _C.Device.known("h200")

    def _load(self, problem, config, compiler: str | None, second=None) -> tuple:
        self.loaded.append((config, second))
        kind = FakeGroupedKernel if problem.op in GROUPED_OPS else FakeKernel
        return kind(problem, config, self.fault), SimpleNamespace(spill_bytes=0)


def copy_storage(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Stand in for memory.copy_to_gpu: copy a tensor with its strides and all that lies around it, on the CPU."""
    if tensor is None:
        return None
    flat = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    return flat.clone().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
