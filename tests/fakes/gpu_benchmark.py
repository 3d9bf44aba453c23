"""The benchmarks' GPU, replaced on the CPU: a timer that makes the calls and invents times, kernels that run the public
ops, CPU tensors.
"""

from types import SimpleNamespace

import torch

import deep_gemm
from benchmarks import dense_fp8, harness, m_grouped_masked
from benchmarks.stamp import read_json
from deep_gemm import _C
from tests.fakes.grouped_operands import RECIPES


class FakeTimer:
    """benchmarks.cold_timer.ColdTimer: calls every variant once and returns its position as microseconds."""

    def __init__(self, sm_count: int):
        assert sm_count == 132

    def measure(self, variants: dict, rounds: int, part: str = "", *, rests: bool = False) -> dict[str, list[float]]:
        """Return made-up times; no call has a part of its own."""
        for call in variants.values():
            call()
        return {name: [float(index + 1)] * rounds for index, name in enumerate(variants)}


class OpKernel:
    """_C.Kernel: the public op's own result on CPU tensors; `fault(kernel, d)` spoils it afterwards."""

    def __init__(self, problem, config, fault=None):
        self.problem, self.config, self.fault = problem, config, fault

    def launch(self, a, scale_a, b, scale_b, d, c=None, *, groups=None) -> None:
        """Compute at once."""
        if groups is not None:
            launch_grouped(self.problem, a, scale_a, b, scale_b, d, c, groups)
        elif self.problem.op == "bf16_gemm":
            deep_gemm.bf16_gemm_nt(a, b, d, c=c)
        else:
            deep_gemm.fp8_gemm_nt((a, scale_a), (b, scale_b), d, c=c, recipe=RECIPES[self.problem.recipe])
        if self.fault is not None:
            self.fault(self, d)


def launch_grouped(problem, a, scale_a, b, scale_b, d, c, groups) -> None:
    """Compute a grouped problem by its public op: operands in nt orientation, except for BF16 groups of K, which are
    `tn`.
    """
    if problem.op == "k_grouped_bf16_gemm_contiguous":
        deep_gemm.k_grouped_bf16_gemm_tn_contiguous(a.T, b.T, d, groups.tolist(), groups, c)
        return
    pairs = (a, b) if scale_a is None else ((a, scale_a), (b, scale_b))
    if problem.op.startswith("k_grouped"):
        deep_gemm.k_grouped_fp8_gemm_nt_contiguous(*pairs, d, groups.tolist(), groups, c)
        return
    name, is_masked = problem.op.rpartition("_")[0], problem.op.endswith("masked")
    op = getattr(deep_gemm, f"{name}_nt_masked" if is_masked else f"{name}_nt_contiguous")
    op(*pairs, d, groups, *((problem.expected_m,) if is_masked else ()))


def install(monkeypatch, fault=None) -> None:
    """Replace what the harness uses of CUDA; `fault` is given to every kernel.

    Tensors meant for the GPU are made on the CPU.
    """
    device = _C.Device.known("h200")
    native = SimpleNamespace(
        Kernel=lambda cubin, name, problem, config, ordinal: OpKernel(problem, config, fault),
        get_device=lambda: device,
        set_batch_invariant=lambda is_enabled: None,
    )
    replaced = {
        "_C": native,
        "ColdTimer": FakeTimer,
        "warm_up": lambda seconds: None,
        "compile_all": lambda kernels: list(kernels)[:0],
        "get_cubin": lambda problem, config: SimpleNamespace(
            cubin=f"{problem} {config}".encode(), kernel_name="kernel"
        ),
    }
    for name, value in replaced.items():
        monkeypatch.setattr(harness, name, value)
    for name in ("randn", "empty", "ones", "zeros", "arange", "tensor"):
        monkeypatch.setattr(torch, name, on_cpu(getattr(torch, name)))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch, "_scaled_mm", lambda a, b, **options: (a.float() @ b.float()).to(options["out_dtype"]))
    multiply = torch.mm
    monkeypatch.setattr(
        torch,
        "mm",
        lambda a, b, out_dtype=None, out=None: multiply(a.float(), b.float()) if out_dtype else multiply(a, b, out=out),
    )


class FakeFloor:
    """benchmarks.device_kernels.ReadKernel: the streaming floor's kernel."""

    def launch(self, b) -> None:
        """Read nothing."""
        assert b.is_contiguous()


def install_families(monkeypatch, keys: dict[str, list[dict]], fault=None) -> None:
    """Let every family run small problems, {name of the family: their keys}, on the CPU."""
    install(monkeypatch, fault)
    for product in (dense_fp8.DenseFp8, m_grouped_masked.MaskedProduct):
        monkeypatch.setattr(product, "floor", FakeFloor())
    monkeypatch.setattr(dense_fp8.DenseFp8, "weight", ())
    monkeypatch.setattr(harness.Family, "read_keys", lambda family: keys[family.name])


def run_family(family, folder, *options: str) -> tuple[int, dict]:
    """Run a family's benchmark; return its exit code and result."""
    out = folder / f"{family.name}.json"
    return harness.main(family, "test", ["--out", str(out), "--rounds", "3", *options]), read_json(out)


def on_cpu(make):
    """Return a torch factory that makes CUDA tensors on the CPU."""
    return lambda *sizes, device=None, **options: make(*sizes, device="cpu" if device == "cuda" else device, **options)
