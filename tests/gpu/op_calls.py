"""A call of every public function that launches a kernel: operands on the CPU, and what the call writes.

One table serves three purposes: the public functions are right under every name (op_jobs.py), give the same bits in
1,000 repeats, and are watched by compute-sanitizer. What a call writes starts as NaN, and the same function on CPU
tensors says what is right.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

import deep_gemm
from deep_gemm.fields import OP_KINDS
from deep_gemm.nn import routing, swiglu
from deep_gemm.ops import OPS, Op
from deep_gemm.quantize import per_block_cast_to_fp8, per_token_cast_to_fp8

from .memory import align, make_nan

#: calc_diff of results that are rounded to BF16; of sums of BF16 products in FP32; of those of FP8 ones, whose
#: tensor-core sums keep 14 bits.
BF16_BOUND, FP32_BOUND, FP8_BOUND = 5e-6, 1e-9, 1e-6
#: Sizes of products: tails in every dimension; FP8 rows of any major are whole multiples of 16 bytes.
M, N, K = 208, 336, 528
#: Rows of contiguous groups, of masked ones, and K of groups.
ROWS, COUNTS, KS, MAX_M, UNIT = (100, 0, 37, 128), (70, 0, 33, 1), (256, 0, 384), 70, 128
#: b, h, r and d of batched products; m, n and k of sums.
SIZES = {"b": 48, "h": 3, "r": 256, "d": 384, "m": 128, "n": 136, "k": 72}
#: Of a sum that clusters add up.
SMALL_SIZES = SIZES | {"b": 21, "m": 70, "n": 40}

Operands = dict[str, object]
Outputs = tuple[torch.Tensor, ...]


class OpCall(NamedTuple):
    """One call.

    Attributes: `name`: of the function. `what`: which call of it. `kind`: op kind whose kernel runs, empty for a plain
        kernel. `make`: -> operands on the CPU by name: tensors, and tuples of them. `run`: (function, operands) -> what
        the call wrote. `bound`: of calc_diff from the CPU's result. `kernels`: the plain kernels that it launches.
    """

    name: str
    what: str
    kind: str
    make: Callable[[], Operands]
    run: Callable[[Callable, Operands], Outputs]
    bound: float = BF16_BOUND
    kernels: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What a job of this call is named by."""
        return f"{self.name} {self.what} {self.kind or 'plain'}"


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return standard normals, the same in every process."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def nan(like: torch.Tensor, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return NaN on the device of a tensor."""
    size = 1
    for length in shape:
        size *= length
    return make_nan(size, dtype, like.device).view(shape)


def get_data(operand: object) -> torch.Tensor:
    """Return the elements of an operand, which may be a pair with scales."""
    return operand[0] if isinstance(operand, tuple) else operand


def quantise(values: torch.Tensor, cast: Callable, transposed: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (data, scales) of [..., rows, k]; `transposed`: both as [..., k, rows], in such memory."""
    pair = cast(values, False)
    return tuple(turn(part) for part in pair) if transposed else pair


def turn(matrix: torch.Tensor) -> torch.Tensor:
    """Return a transposed copy of [..., rows, columns]."""
    return matrix.transpose(-2, -1).contiguous()


def make_operands(op: Op, a: torch.Tensor, b: torch.Tensor) -> Operands:
    """Return A [..., m, k] and B [..., n, k] as the op takes them: quantised, and in the memory that its name says."""
    is_a_turned, is_b_turned = op.layout[0] == "t", op.layout[1] == "n"
    if op.is_fp8:
        return {
            "a": quantise(a, per_token_cast_to_fp8, is_a_turned),
            "b": quantise(b, per_block_cast_to_fp8, is_b_turned),
        }
    return {"a": turn(a) if is_a_turned else a, "b": turn(b) if is_b_turned else b}


def write(function: Callable, operands: Operands, *shape: int, **options) -> Outputs:
    """Call an op on A and B and a new D, with the other operands by name; return D."""
    given = {name: value for name, value in operands.items() if name not in ("a", "b")}
    d = nan(get_data(operands["a"]), *shape, dtype=options.pop("dtype", torch.bfloat16))
    function(operands["a"], operands["b"], d, **given, **options)
    return (d,)


def list_dense(op: Op) -> list[OpCall]:
    """Return the calls of a dense op: plain, and onto C in FP32."""
    make = partial(_make_dense, op)
    calls = [OpCall(op.name, "plain", op.kind, make, lambda f, x: write(f, x, M, N))]
    return [*calls, OpCall(op.name, "fp32 onto C", op.kind, partial(_make_dense, op, True), _write_onto_c, FP8_BOUND)]


def _make_dense(op: Op, has_c: bool = False) -> Operands:
    found = make_operands(op, normal(M, K), normal(N, K))
    return found | ({"c": normal(M, N, dtype=torch.float32)} if has_c else {})


def _write_onto_c(function: Callable, operands: Operands) -> Outputs:
    return write(function, operands, M, N, dtype=torch.float32)


def list_heads(op: Op) -> list[OpCall]:
    """Return a product whose D has room between the parts of a head."""
    splits = (128, 64, 64)
    columns = 2 * sum(splits)

    def make() -> Operands:
        return make_operands(op, normal(M, K), normal(2 * (splits[0] + splits[2]), K))

    return [OpCall(op.name, "heads", op.kind, make, lambda f, x: write(f, x, M, columns, head_splits=splits))]


def list_contiguous(op: Op) -> list[OpCall]:
    """Return groups of rows: by indices, and by their ends with and without zeroed padding."""
    total = sum(align(rows, UNIT) for rows in ROWS) + UNIT
    ends, first = [], 0
    for rows in ROWS:
        ends.append(align(first, UNIT) + rows)
        first = ends[-1]
    indices = torch.full((total,), -1, dtype=torch.int32)
    for group, (end, rows) in enumerate(zip(ends, ROWS, strict=True)):
        indices[end - rows : end] = group
    places = {"m_indices": indices}, {"m_indices": torch.tensor(ends, dtype=torch.int32)}

    def make(number: int) -> Operands:
        return make_operands(op, normal(total, K), normal(len(ROWS), N, K)) | places[number]

    def run_rows(function: Callable, operands: Operands) -> Outputs:
        (d,) = write(function, operands, total, N, use_psum_layout=True)
        return tuple(d[end - rows : end] for end, rows in zip(ends, ROWS, strict=True))

    psum = op.kind.replace("_contiguous", "_psum")
    zeroed = {"use_psum_layout": True, "ensure_zero_padding": True}
    return [
        OpCall(op.name, "indices", op.kind, partial(make, 0), lambda f, x: write(f, x, total, N)),
        OpCall(op.name, "ends", psum, partial(make, 1), run_rows),
        OpCall(op.name, "ends, zeroed", psum, partial(make, 1), lambda f, x: write(f, x, total, N, **zeroed)),
    ]


def list_masked(op: Op) -> list[OpCall]:
    """Return groups with room for more rows than they have."""

    def make() -> Operands:
        counts = torch.tensor(COUNTS, dtype=torch.int32)
        return make_operands(op, normal(len(COUNTS), MAX_M, K), normal(len(COUNTS), N, K)) | {"masked_m": counts}

    def run(function: Callable, operands: Operands) -> Outputs:
        (d,) = write(function, operands, len(COUNTS), MAX_M, N, expected_m=MAX_M)
        return tuple(d[group, :count] for group, count in enumerate(COUNTS))

    return [OpCall(op.name, "masked", op.kind, make, run)]


def list_k_grouped(op: Op) -> list[OpCall]:
    """Return groups of K by their sizes, onto C too, and by their ends."""

    def make(has_c: bool = False, has_ends: bool = False) -> Operands:
        found = {name: _make_k_operand(op, rows) for name, rows in (("a", M), ("b", N))}
        sizes = torch.tensor(KS, dtype=torch.int32)
        groups = {"ks_tensor": sizes.cumsum(0).int() if has_ends else sizes}
        return found | groups | ({"c": normal(len(KS), M, N, dtype=torch.float32)} if has_c else {})

    def run(function: Callable, operands: Operands, **options) -> Outputs:
        return write(function, operands, len(KS), M, N, dtype=torch.float32, ks=list(KS), **options)

    psum, bound = op.kind.replace("_contiguous", "_psum"), FP8_BOUND if op.is_fp8 else FP32_BOUND
    return [
        OpCall(op.name, "sizes", op.kind, make, run, bound),
        OpCall(op.name, "onto C", op.kind, partial(make, True), run, bound),
        OpCall(op.name, "ends", psum, partial(make, False, True), partial(run, use_psum_layout=True), bound),
    ]


def _make_k_operand(op: Op, rows: int) -> object:
    """Return an operand whose K the groups share: [K, rows], or one group's [rows, K] after the other."""
    values = normal(rows, sum(KS))
    if not op.is_fp8:
        return turn(values)
    data, scales = per_token_cast_to_fp8(values, False)
    if not op.is_blocks:
        return turn(data), turn(scales)
    return torch.cat([part.contiguous().view(-1).view(torch.uint8) for part in data.split(KS, 1)]).view(
        data.dtype
    ), scales


def split_expression(expr: str) -> tuple[str, str, str]:
    """Return the letters of A, B and D."""
    inputs, _, output = expr.partition("->")
    a, _, b = inputs.partition(",")
    return a, b, output


def shape_of(letters: str, sizes: dict[str, int] = SIZES) -> tuple[int, ...]:
    """Return the sizes that letters stand for."""
    return tuple(sizes[letter] for letter in letters)


def list_einsum(op: Op) -> list[OpCall]:
    """Return every expression of BF16 operands with each dtype of D, and a sum onto C; sums of two sizes."""
    calls = []
    for expr, sizes, kind, kernels in (
        ("bhr,hdr->bhd", SIZES, op.kind, ()),
        ("bhd,hdr->bhr", SIZES, op.kind, ()),
        ("bhd,bhr->hdr", SIZES, op.kind, ()),
        ("bmk,bnk->mn", SIZES, "summed_bf16_gemm", ("sum_parts",)),
        ("bmk,bnk->mn", SMALL_SIZES, "summed_bf16_gemm", ("sum_products",)),
    ):
        for dtype, has_c in ((torch.bfloat16, False), (torch.float32, False), (torch.float32, True)):
            small = ", small" if sizes is SMALL_SIZES else ""
            what = f"{expr} {str(dtype)[6:]}{' onto C' if has_c else ''}{small}"
            make, run = partial(_make_einsum, expr, has_c, sizes), partial(_run_einsum, expr, dtype, sizes=sizes)
            bound = FP32_BOUND if dtype == torch.float32 else BF16_BOUND
            calls.append(OpCall(op.name, what, kind, make, run, bound, kernels))
    return calls


def _make_einsum(expr: str, has_c: bool, sizes: dict[str, int]) -> Operands:
    a, b, output = split_expression(expr)
    found: Operands = {"a": normal(*shape_of(a, sizes)), "b": normal(*shape_of(b, sizes), seed=1)}
    return found | ({"c": normal(*shape_of(output, sizes), dtype=torch.float32)} if has_c else {})


def _run_einsum(
    expr: str,
    dtype: torch.dtype,
    function: Callable,
    operands: Operands,
    sizes: dict[str, int] = SIZES,
    **options,
) -> Outputs:
    d = nan(get_data(operands["a"]), *shape_of(split_expression(expr)[2], sizes), dtype=dtype)
    function(expr, operands["a"], operands["b"], d, operands.get("c"), **options)
    return (d,)


def list_fp8_einsum(op: Op) -> list[OpCall]:
    """Return every expression of FP8 operands with each recipe, and a weight gradient onto C."""
    calls = []
    for expr in ("bhr,hdr->bhd", "bhd,hdr->bhr", "bhd,bhr->hdr"):
        for recipe in ((1, 128, 128), (1, 1, 128)):
            run = partial(_run_einsum, expr, torch.bfloat16, recipe=recipe)
            make = partial(_make_fp8_einsum, expr, recipe)
            calls.append(OpCall(op.name, f"{expr} {recipe[1]}", op.kind, make, run))
    expr = "bhd,bhr->hdr"
    make, run = partial(_make_fp8_einsum, expr, (1, 1, 128), True), partial(_run_einsum, expr, torch.float32)
    return [*calls, OpCall(op.name, f"{expr} onto C", op.kind, make, partial(run, recipe=(1, 1, 128)), FP8_BOUND)]


def _make_fp8_einsum(expr: str, recipe: tuple, has_c: bool = False) -> Operands:
    a, b, output = split_expression(expr)
    summed = next(letter for letter in a if letter not in output)
    rows_of_b = next(letter for letter in b if letter not in a)
    blocks = {"a": {summed: 128}, "b": {summed: 128, rows_of_b: recipe[1]}}
    found: Operands = {
        name: (normal(*shape_of(letters), seed=1).to(torch.float8_e4m3fn), _make_scales(letters, blocks[name]))
        for name, letters in (("a", a), ("b", b))
    }
    return found | ({"c": normal(*shape_of(output), dtype=torch.float32)} if has_c else {})


def _make_scales(letters: str, blocks: dict[str, int]) -> torch.Tensor:
    """Return scales of 0.5 to 1.5, one for each block of so many elements along the letters."""
    steps = [-(-SIZES[letter] // blocks.get(letter, 1)) for letter in letters]
    return torch.rand(steps, generator=torch.Generator().manual_seed(len(letters))) + 0.5


def list_vendor(op: Op) -> list[OpCall]:
    """Return a product of the vendor's library; its kernels are not ours."""
    return [OpCall(op.name, "plain", "vendor", partial(_make_dense, op), lambda f, x: write(f, x, M, N))]


def list_symmetric(op: Op) -> list[OpCall]:
    """Return products of symmetric matrices, of a batch and of one; the kernels are the vendor's, too."""
    return [
        OpCall(op.name, what, "vendor", partial(_make_symmetric, op, batch), _run_symmetric)
        for what, batch in (("batch", (3,)), ("one", ()))
    ]


def _make_symmetric(op: Op, batch: tuple[int, ...]) -> Operands:
    if op.name == "batched_syrk":
        return {"a": normal(*batch, M, K)}
    a = normal(*batch, M, M)
    return {"a": a + a.mT, "b": normal(*batch, M, N)}


def _run_symmetric(function: Callable, operands: Operands) -> Outputs:
    a = operands["a"]
    d = nan(a, *a.shape[:-1], operands["b"].shape[-1] if "b" in operands else a.shape[-2])
    function(*operands.values(), d)
    return (d,)


def list_hc_prenorm(op: Op) -> list[OpCall]:
    """Return products with and without slices of K, of a K that one launch does not add up, and one whose columns need
    two tiles.
    """
    calls = []
    for n, k, splits, names in (
        (24, 7168, None, ("hc_prenorm",)), (24, 28672, None, ("hc_prenorm", "hc_prenorm_sum")),
        (24, 7168, 16, ("hc_prenorm",)), (30, 7168, 3, ("hc_prenorm",)),
    ):  # fmt: skip
        make, run = partial(_make_prenorm, n, k), partial(_run_prenorm, n, splits)
        calls.append(OpCall(op.name, f"n {n} k {k} splits {splits}", "", make, run, 1e-8, names))
    return calls


def _make_prenorm(n: int, k: int) -> Operands:
    return {"a": normal(137, k), "b": normal(n, k, dtype=torch.float32)}


def _run_prenorm(n: int, splits: int | None, function: Callable, operands: Operands) -> Outputs:
    """Return the sums over the slices: how K is cut is up to the device."""
    a, lead = get_data(operands["a"]), () if splits is None else (splits,)
    d, squares = nan(a, *lead, 137, n, dtype=torch.float32), nan(a, *lead, 137, dtype=torch.float32)
    function(a, operands["b"], d, squares, splits)
    return (d, squares) if splits is None else (d.sum(0), squares.sum(0))


MAKERS: dict[str, Callable[[Op], list[OpCall]]] = {
    "dense": list_dense,
    "heads": list_heads,
    "contiguous": list_contiguous,
    "masked": list_masked,
    "k_grouped": list_k_grouped,
    "einsum": list_einsum,
    "fp8_einsum": list_fp8_einsum,
    "hc_prenorm": list_hc_prenorm,
    "vendor": list_vendor,
    "syrk": list_symmetric,
    "symm": list_symmetric,
}


def list_calls() -> list[OpCall]:
    """Return the calls of every row of the table of ops, then those of the quantising and layout functions."""
    from .plain_calls import LOGITS_MAKERS, list_plain

    makers = MAKERS | LOGITS_MAKERS
    return [call for op in OPS for call in makers[op.docs_template](op)] + list_plain()


def list_names(call: OpCall) -> tuple[str, ...]:
    """Return every name under which a call's function is exported."""
    return next(((op.name, *op.other_names) for op in OPS if op.name == call.name), (call.name,))


def find_function(name: str) -> Callable:
    """Return the public function of a name, or the op of the layers."""
    return next(getattr(module, name) for module in (deep_gemm, swiglu, routing) if hasattr(module, name))


def list_public_calls() -> list[OpCall]:
    """Return the calls of public functions."""
    return [call for call in list_calls() if hasattr(deep_gemm, call.name)]


def is_ours(call: OpCall) -> bool:
    """Return whether a call runs kernels of this library under a name of its own: operands of `fp8_fp4` names are FP8
    and take the kernels of the name without `fp4`.
    """
    return call.kind != "vendor" and "_fp4_" not in call.name


def list_kinds(calls: list[OpCall]) -> set[str]:
    """Return the op kinds of some calls."""
    return {call.kind for call in calls} & set(OP_KINDS)
