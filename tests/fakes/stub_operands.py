"""Operands of every variant, described in the memory of the stub's GPU, which nobody reads."""

from deep_gemm import _C
from deep_gemm.quantize import align

A, SCALE_A, B, SCALE_B, D, C = (1 << exponent for exponent in range(40, 46))  # addresses, far apart
ELEMENT = {"float8_e4m3fn": 1, "bfloat16": 2, "float32": 4}


def view(address: int, shape: tuple, strides: tuple, dtype: str, device: int = 0) -> "_C.TensorView":
    """Describe a tensor."""
    return _C.TensorView(address, list(shape), list(strides), dtype, device)


def pitch_of(columns: int, dtype: str, extra: int = 16) -> int:
    """Return the pitch, in elements, of rows padded to 16 bytes and `extra` more."""
    size = ELEMENT[dtype]
    return (align(columns * size, 16) + extra) // size


def find_slab(config: "_C.Config", dtype: str) -> tuple[int, int]:
    """Return the columns that leave the D tile together, and their swizzle as the driver numbers it: as many bytes, 32
    to 128, as divide the tile, or whole rows where that would be 16 bytes, or 32 in a large tile.
    """
    size, columns = ELEMENT[dtype], 64 if config.swap_ab else _C.columns_per_warpgroup(config)
    is_beside = not config.swap_ab and columns < config.block_n  # two warpgroups side by side
    narrow = next(width for width in (128, 64, 32, 16) if columns * size % width == 0)
    if narrow == 16 or (narrow == 32 and (config.block_m > 64 or is_beside or columns > 128)):
        return columns, 0
    return narrow // size, {32: 1, 64: 2, 128: 3}[narrow]


def input_view(address: int, rows: int, k: int, dtype: str, major: str, device: int = 0) -> "_C.TensorView":
    """Describe A or B as [rows, k], contiguous along k or along the rows."""
    pitch = pitch_of(k if major == "k" else rows, dtype)
    return view(address, (rows, k), (pitch, 1) if major == "k" else (1, pitch), dtype, device)


def scale_view(address: int, rows: int, steps: int, layout: str, device: int = 0) -> "_C.TensorView":
    """Describe scales [rows, steps]; `layout` "mn_major" is what TMA reads, "any" is row-major at an odd pitch."""
    strides = (1, align(rows, 4) + 4) if layout == "mn_major" else (steps + 3, 1)
    return view(address, (rows, steps), strides, "float32", device)


def make_scales(problem: "_C.Problem", m: int, n: int, k: int, device: int = 0) -> tuple:
    """Describe the scales of A and B, or (None, None)."""
    if problem.op == "bf16_gemm":
        return None, None
    if problem.recipe == "per_row":
        return view(SCALE_A, (m,), (2,), "float32", device), view(SCALE_B, (n,), (3,), "float32", device)
    steps, rows_b = -(-k // 128), n if problem.recipe == "1d1d" else -(-n // 128)
    layout_b = problem.scale_layout if problem.recipe == "1d1d" else "any"
    return scale_view(SCALE_A, m, steps, problem.scale_layout, device), scale_view(
        SCALE_B, rows_b, steps, layout_b, device
    )


def make_variant(
    problem: "_C.Problem", m: int, n: int, k: int, heads: tuple = (8, 4, 0), device: int = 0
) -> tuple[tuple, dict]:
    """Return the arguments of Kernel.launch for operands of `problem`'s variant: (positional, keywords)."""
    dtype = "float8_e4m3fn" if problem.op == "fp8_gemm" else "bfloat16"
    d_dtype = "float32" if problem.d_dtype == "fp32" else "bfloat16"
    a, b = input_view(A, m, k, dtype, problem.a_major, device), input_view(B, n, k, dtype, problem.b_major, device)
    scale_a, scale_b = make_scales(problem, m, n, k, device)
    options, columns = {}, n
    if problem.c_mode == "head_split":
        columns, options = n // (heads[0] + heads[2]) * sum(heads), {"head_splits": heads}
    d = view(D, (m, columns), (pitch_of(columns, d_dtype), 1), d_dtype, device)
    if problem.c_mode == "accumulate":
        options = {"c": d}
    elif problem.c_mode == "general":
        options = {"c": view(C, (m, n), (n + 1, 1), d_dtype, device), "alpha": 0.5, "beta": -2.0}
    return (a, scale_a, b, scale_b, d), options


# Operands of grouped ops: each group's matrix is further from the next than it is large.

GROUPS = 1 << 46


def grouped_view(
    address: int, shape: tuple, dtype: str, is_transposed: bool = False, device: int = 0
) -> "_C.TensorView":
    """Describe [..., rows, columns] in padded rows, or in padded columns where `is_transposed`."""
    *groups, rows, columns = shape
    pitch = pitch_of(rows if is_transposed else columns, dtype)
    strides = (1, pitch) if is_transposed else (pitch, 1)
    group_stride = ((columns if is_transposed else rows) + 2) * pitch
    return view(address, shape, (group_stride, *strides) if groups else strides, dtype, device)


def grouped_scales(address: int, shape: tuple, layout: str, device: int = 0) -> "_C.TensorView":
    """Describe scales [..., rows, steps] as scale_view does."""
    *groups, rows, steps = shape
    strides = (1, align(rows, 4) + 4) if layout == "mn_major" else (steps + 3, 1)
    group_stride = (align(rows, 4) + 4) * (steps + 1) if layout == "mn_major" else (rows + 1) * (steps + 3)
    return view(address, shape, (group_stride, *strides) if groups else strides, "float32", device)


def grouped_shapes(problem: "_C.Problem", m: int, n: int, k: int, num_groups: int) -> dict[str, tuple]:
    """Return the shape of every operand in nt orientation; `k` is of all groups together where they divide it."""
    steps, scale_rows, many = -(-k // 128), n if problem.recipe == "1d1d" else -(-n // 128), (num_groups,)
    if problem.op.startswith("k_grouped"):
        shapes = {
            "a": (m, k),
            "b": (n, k),
            "d": (*many, m, n),
            "groups": many,
            "scale_a": (m, steps),
            "scale_b": (n, steps),
        }
        return shapes | ({"a": (m * k,), "b": (n * k,)} if problem.group_layout == "blocks" else {})
    rows, groups = ((*many, m), many) if problem.op.endswith("masked") else ((m,), (m,))
    shapes = {"a": (*rows, k), "b": (*many, n, k), "d": (*rows, n), "groups": groups}
    return shapes | {"scale_a": (*rows, steps), "scale_b": (*many, scale_rows, steps)}


def grouped_input(problem: "_C.Problem", name: str, shape: tuple, device: int = 0) -> "_C.TensorView":
    """Describe A or B of a grouped op."""
    address, dtype = {"a": A, "b": B}[name], "float8_e4m3fn" if "fp8" in problem.op else "bfloat16"
    if len(shape) == 1:
        return view(address, shape, (1,), dtype, device)
    return grouped_view(address, shape, dtype, getattr(problem, f"{name}_major") == "mn", device)


def make_grouped_variant(
    problem: "_C.Problem", m: int, n: int, k: int, num_groups: int, device: int = 0
) -> tuple[tuple, dict]:
    """Return the arguments of Kernel.launch for operands of a grouped problem's variant: (positional, keywords)."""
    shapes, d_dtype = (
        grouped_shapes(problem, m, n, k, num_groups),
        "float32" if problem.d_dtype == "fp32" else "bfloat16",
    )
    scales = (None, None)
    if "fp8" in problem.op:
        layout_b = problem.scale_layout if problem.recipe == "1d1d" else "any"
        scales = [
            grouped_scales(SCALE_A, shapes["scale_a"], problem.scale_layout, device),
            grouped_scales(SCALE_B, shapes["scale_b"], layout_b, device),
        ]
    a, b = (grouped_input(problem, name, shapes[name], device) for name in "ab")
    d = grouped_view(D, shapes["d"], d_dtype, device=device)
    options = {"groups": view(GROUPS, shapes["groups"], (1,), "int32", device)}
    if problem.c_mode != "none":
        options["c"] = (
            d
            if problem.c_mode == "accumulate"
            else view(C, (num_groups, m, n), ((m + 1) * (n + 1), n + 1, 1), d_dtype, device)
        )
    return (a, scales[0], b, scales[1], d), options
