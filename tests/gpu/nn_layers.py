"""The jobs of deep_gemm.nn: forward and backward of the FP8 layers on the GPU.

Each result is compared twice: with the definition, FP32 products of operands rounded by the casts (nn_references.py),
within the error of FP8 sums and of one rounding; and with the layer in BF16 that it replaces, within the rounding of
two operands to E4M3. Memory that torch hands out is full of NaN.
"""

import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from deep_gemm.nn import Fp8Experts, Fp8GroupedLinear, Fp8Linear
from deep_gemm.numerics import MAX_DIFF_BF16_D, MAX_DIFF_FP8
from deep_gemm.quantize import align
from deep_gemm.testing import calc_diff

from .mega_layer import mega_jobs
from .nn_references import multiply, poisoned
from .public_op import Checks

DEVICE = "cuda"
BF16, FP32 = torch.bfloat16, torch.float32
#: (m, n, k): decode, blocks of 128 and their neighbours, features that are no multiples of 128, a layer of a model.
DENSE = ((1, 256, 512), (0, 64, 128), (127, 144, 272), (129, 1040, 2064), (512, 4096, 1536))
#: (rows of each group, n, k).
GROUPED = (((5, 0, 130), 144, 272), ((128, 1, 256, 77), 768, 1024))
#: (tokens, top_k, experts, hidden, width).
EXPERTS = ((64, 2, 6, 512, 256), (200, 4, 8, 1024, 384))
#: calc_diff against the definition: FP8 sums of any data, and a BF16 result to which a bias is added.
BOUNDS = {FP32: 20 * MAX_DIFF_FP8, BF16: 2 * MAX_DIFF_BF16_D}
#: calc_diff against full precision: rounding two operands to E4M3 gives 7e-4 for one product of random normal data.
#: Gradients of routing weights are few numbers, so that they vary more.
MAX_FP8_DIFF, MAX_EXPERTS_DIFF, MAX_GATES_DIFF = 1.5e-3, 5e-3, 1.5e-2
#: Of a compiled network, which rounds between layers less often.
MAX_COMPILED_DIFF = 1e-4
COMPILE_THREADS = 16


def run_layer(layer: Callable, x: torch.Tensor, grad: torch.Tensor, parameters=()) -> tuple[torch.Tensor, ...]:
    """Return (y, dx, the gradients of the parameters)."""
    x = x.detach().requires_grad_()
    y = layer(x)
    return y.detach(), *torch.autograd.grad(y, (x, *parameters), grad)


def make_dense(shape: tuple[int, int, int], dtype: torch.dtype) -> tuple:
    """Return (torch's layer, ours with its parameters, x, the gradient of y)."""
    m, n, k = shape
    linear = torch.nn.Linear(k, n, device=DEVICE, dtype=dtype)
    x, grad = (torch.randn(m, size, device=DEVICE, dtype=dtype) for size in (k, n))
    return linear, Fp8Linear.from_linear(linear), x, grad


def compare(checks: Checks, what: str, found: torch.Tensor, wanted: torch.Tensor, bound: float) -> None:
    """Expect numbers of this shape within a bound of calc_diff; 0: equal."""
    is_shaped = found.shape == wanted.shape and bool(found.isfinite().all())
    difference = calc_diff(found, wanted) if is_shaped and found.numel() else 0.0
    checks.expect(
        is_shaped and difference <= bound, f"{what}: calc_diff {difference} above {bound}, {list(found.shape)}"
    )


def check_dense(shape: tuple[int, int, int], dtype: torch.dtype) -> tuple[int, list[str]]:
    """Check values and gradients of a dense layer, and that they repeat."""
    checks, (linear, layer, x, grad) = Checks(), make_dense(shape, dtype)
    found = run_layer(layer, x, grad, (layer.weight, layer.bias))
    y, dx, dw = multiply(x, linear.weight.detach(), grad)
    wanted = (y.to(dtype) + linear.bias.detach(), dx, dw, grad.float().sum(0))
    plain = run_layer(linear, x, grad, (linear.weight, linear.bias))
    for name, got, right, high in zip(("y", "dx", "dw", "db"), found, wanted, plain, strict=True):
        compare(checks, f"{name} {shape} against its definition", got, right, BOUNDS[dtype])
        compare(checks, f"{name} {shape} against the layer it replaces", got, high, MAX_FP8_DIFF)
    again = run_layer(layer, x, grad, (layer.weight, layer.bias))
    checks.expect(all(map(torch.equal, found[:3], again[:3])), f"{shape}: other bits in a second run")
    return checks.outcome()


def check_stored(shape: tuple[int, int, int]) -> tuple[int, list[str]]:
    """Check that a stored weight gives the bits of the weight that it was made of, and that main_grad is added to."""
    checks, (linear, layer, x, grad) = Checks(), make_dense(shape, BF16)
    found, dx, dw = run_layer(layer, x, grad, (layer.weight,))
    stored = Fp8Linear.from_linear(linear, trainable=False)
    y, dx_stored = run_layer(stored, x, grad)
    checks.expect(torch.equal(y, found) and torch.equal(dx, dx_stored), f"{shape}: a stored weight gives other bits")
    layer.accumulates_main_grad, layer.weight.main_grad = True, torch.ones_like(layer.weight, dtype=FP32)
    for _ in range(2):
        layer(x).backward(grad)
    compare(checks, f"main_grad {shape}", layer.weight.main_grad - 1, 2 * dw.float(), 2 * MAX_DIFF_BF16_D)
    checks.expect(layer.weight.grad is None, "a gradient beside main_grad")
    return checks.outcome()


def check_swiglu(m: int, n: int, k: int) -> tuple[int, list[str]]:
    """Check that the fused activation gives what the layer gives for the activation in FP32."""
    checks, layer = Checks(), Fp8Linear(k, n, bias=False, device=DEVICE, dtype=BF16)
    x, grad = (torch.randn(m, size, device=DEVICE) for size in (2 * k, n))

    def run_apart(rows: torch.Tensor) -> torch.Tensor:
        gate, up = rows.chunk(2, -1)
        return layer(torch.nn.functional.silu(gate) * up)

    wanted = run_layer(run_apart, x, grad, (layer.weight,))
    found = run_layer(partial(layer, is_swiglu=True), x, grad, (layer.weight,))
    for name, got, right in zip(("y", "dx", "dw"), found, wanted, strict=True):
        compare(checks, f"{name} of SwiGLU {(m, n, k)}", got, right, MAX_DIFF_BF16_D)
    return checks.outcome()


def make_rows(sizes: tuple[int, ...], features: int) -> tuple[torch.Tensor, torch.Tensor, list[slice]]:
    """Return BF16 rows of groups with zeros between and behind them, their ends, and where they lie."""
    parts, start = [], 0
    for size in sizes:
        parts.append(slice(start, start + size))
        start = align(start + size, 128)
    x = torch.zeros(start + 128, features, device=DEVICE, dtype=BF16)
    for part, size in zip(parts, sizes, strict=True):
        x[part] = torch.randn(size, features, device=DEVICE)
    return x, torch.tensor([part.stop for part in parts], dtype=torch.int32, device=DEVICE), parts


def check_grouped(sizes: tuple[int, ...], n: int, k: int) -> tuple[int, list[str]]:
    """Check every group against the dense definition, that padding is 0, and that NaN in x's padding stays there."""
    checks, layer = Checks(), Fp8GroupedLinear(len(sizes), k, n, device=DEVICE, dtype=BF16)
    (x, ends, parts), (grad, _, _) = make_rows(sizes, k), make_rows(sizes, n)
    y, dx, dw = run_layer(lambda rows: layer(rows, ends), x, grad, (layer.weight,))
    is_row = torch.zeros(len(x), dtype=torch.bool, device=DEVICE)
    for group, part in enumerate(parts):
        is_row[part] = True
        wanted = multiply(x[part], layer.weight[group].detach(), grad[part])
        for name, got, right in zip(("y", "dx", "dw"), (y[part], dx[part], dw[group]), wanted, strict=True):
            compare(checks, f"{name} of group {group} of {sizes}", got, right, MAX_DIFF_BF16_D)
    checks.expect(not y[~is_row].any() and not dx[~is_row].any(), f"{sizes}: padding is not 0")
    spoilt = torch.where(is_row[:, None], x, float("nan"))
    checks.expect(torch.equal(layer(spoilt, ends), y), f"{sizes}: padding of x leaked")
    return checks.outcome()


def make_experts(tokens: int, top_k: int, experts: int, hidden: int, width: int) -> tuple:
    """Return (layer, x, index, weights)."""
    layer = Fp8Experts(experts, hidden, width, device=DEVICE, dtype=BF16)
    index = torch.rand(tokens, experts, device=DEVICE).topk(top_k).indices
    x = torch.randn(tokens, hidden, device=DEVICE, dtype=BF16)
    return layer, x, index, torch.rand(tokens, top_k, device=DEVICE)


def run_densely(layer: Fp8Experts, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the layer in FP32: every expert on every token, the unchosen ones with weight 0."""
    gate_up, down = layer.gate_up_proj.weight.float(), layer.down_proj.weight.float()
    gates = torch.zeros(len(x), len(down), device=DEVICE).scatter(1, index, weights)
    out = torch.zeros(x.shape, device=DEVICE)
    for expert in range(len(down)):
        gate, up = (x.float() @ gate_up[expert].t()).chunk(2, -1)
        out = out + (torch.nn.functional.silu(gate) * up) @ down[expert].t() * gates[:, expert, None]
    return out


def check_experts(*sizes: int) -> tuple[int, list[str]]:
    """Check experts against dense ones, forward and backward, and both layouts against each other."""
    checks, (layer, x, index, weights) = Checks(), make_experts(*sizes)
    parameters, gates = tuple(layer.parameters()), weights.clone().requires_grad_()
    grad = torch.randn_like(x)
    found = run_layer(lambda rows: layer(rows, index, gates), x, grad, (gates, *parameters))
    wanted = run_layer(lambda rows: run_densely(layer, rows, index, gates).to(BF16), x, grad, (gates, *parameters))
    for name, got, right in zip(("y", "dx", "dweights", "dgate_up", "ddown"), found, wanted, strict=True):
        bound = MAX_GATES_DIFF if name == "dweights" else MAX_EXPERTS_DIFF
        compare(checks, f"{name} of experts {sizes}", got, right, bound)
    with torch.no_grad():
        masked = layer(x, index, weights, layout="masked")
    compare(checks, f"masked experts {sizes}", masked, found[0], MAX_EXPERTS_DIFF)
    return checks.outcome()


def check_graph() -> tuple[int, list[str]]:
    """Replay a captured layer of both layouts with another routing and other values."""
    checks, (layer, x, index, weights) = Checks(), make_experts(*EXPERTS[0])
    layer.gate_up_proj.freeze(), layer.down_proj.freeze()
    for layout in ("masked", "contiguous"):
        run = partial(layer, x, index, weights, layout=layout)
        with torch.no_grad():
            run()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = run()
            for _ in range(3):
                x.copy_(torch.randn_like(x))
                index.copy_(torch.rand(len(x), EXPERTS[0][2], device=DEVICE).topk(index.shape[1]).indices)
                graph.replay()
                checks.expect(torch.equal(y, run()), f"{layout}: a replay gives other bits")
    return checks.outcome()


def check_compiled() -> tuple[int, list[str]]:
    """Compile a small network, whole, with the backend that this machine has, and compare with eager calls."""
    has_triton = importlib.util.find_spec("triton") is not None
    torch._inductor.config.compile_threads = 1  # a pool of processes would outlive the job
    checks = Checks()
    layers = [Fp8Linear(256, 256, device=DEVICE, dtype=BF16) for _ in range(2)]
    model = torch.nn.Sequential(layers[0], torch.nn.SiLU(), layers[1])
    x, grad = torch.randn(2, 40, 256, device=DEVICE, dtype=BF16).unbind()
    parameters = tuple(model.parameters())
    wanted = run_layer(model, x, grad, parameters)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="inductor" if has_triton else "aot_eager")
    for index, (got, right) in enumerate(zip(run_layer(compiled, x, grad, parameters), wanted, strict=True)):
        compare(checks, f"result {index} of a compiled network", got, right, MAX_COMPILED_DIFF)
    return checks.outcome()


def within_poison(check: Callable, *sizes) -> tuple[int, list[str]]:
    """Run a check on fresh random operands, in memory that is full of NaN."""
    with poisoned():
        return check(*sizes)


def list_checks() -> dict[str, tuple]:
    """Return name -> (check, its arguments)."""
    found: dict[str, tuple] = {}
    for shape in DENSE:
        found |= {f"nn linear: {dtype} {shape}": (check_dense, shape, dtype) for dtype in (BF16, FP32)}
    found |= {f"nn stored: {shape}": (check_stored, shape) for shape in DENSE[2:4]}
    found["nn swiglu: dense"] = (check_swiglu, 130, 256, 272)
    found |= {f"nn grouped: {sizes}": (check_grouped, *sizes) for sizes in GROUPED}
    found |= {f"nn experts: {sizes}": (check_experts, *sizes) for sizes in EXPERTS}
    return found


def compile_checks(names: list[str]) -> tuple[int, list[str]]:
    """Run checks several at a time, so that their kernels are compiled on all cores; what goes wrong shows later."""

    def run_one(name: str) -> None:
        check, *sizes = list_checks()[name]
        try:
            check(*sizes)
        except Exception:
            return

    with ThreadPoolExecutor(COMPILE_THREADS) as pool:
        list(pool.map(run_one, names))
    return len(names), []


def nn_jobs(world: object = None) -> list[tuple]:
    """Return the jobs: those that compile, then one for each check, and the compiled network."""
    checks = list_checks()
    parts = (list(checks)[::2], list(checks)[1::2])
    jobs: list[tuple] = [(f"nn compile: {number}", partial(compile_checks, part)) for number, part in enumerate(parts)]
    jobs += [(name, partial(within_poison, *check)) for name, check in checks.items()]
    return [*jobs, *mega_jobs(), ("nn graph: experts", check_graph), ("nn compiled: all", check_compiled)]
