"""Faults of a launch's arguments on CPU and meta tensors: fuzzed calls, alignment, zero sizes, large sizes.

The fuzzer changes valid calls at random; an independent oracle, written from the op's rules, says whether the result is
valid. A valid call must give the right product, an invalid one must raise a typed error. Nothing may be written outside
D, and nothing at all before an error.
"""

import itertools
import random
from dataclasses import dataclass, field

import pytest
import torch

import deep_gemm
from deep_gemm.errors import DeepGemmError, LayoutError, ShapeError
from tests.fakes.operands import align, count_wrong, make_operands, make_reference

CALLS_PER_TEST = 200
FP8, BF16, FP32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32
DTYPES = {"a": (FP8,), "scale_a": (FP32,), "b": (FP8,), "scale_b": (FP32,), "d": (BF16, FP32)}
#: Rows and columns of unwritable memory around D.
GUARD_ROWS, GUARD_COLUMNS = 3, 16


@dataclass
class Call:
    """One call under construction; `buffer` is the memory that D lies in, every bit set."""

    shape: tuple[int, int, int]
    operands: dict
    buffer: torch.Tensor
    options: dict = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)


def make_call(rng: random.Random) -> Call:
    """Return a valid call of a random shape."""
    m, n, k = (
        rng.choice((1, 2, 33, rng.randint(1, 40))),
        rng.choice((1, 8, 130, rng.randint(1, 300))),
        rng.choice((1, 128, 129, rng.randint(1, 400))),
    )
    if rng.random() < 0.1:
        m, n, k = rng.choice(((0, n, k), (m, 0, k), (m, n, 0)))
    buffer = torch.full((m + 2 * GUARD_ROWS, align(n, 8) + 2 * GUARD_COLUMNS), -1, dtype=torch.int16)
    d = buffer.view(BF16)[GUARD_ROWS : GUARD_ROWS + m, GUARD_COLUMNS : GUARD_COLUMNS + n]
    operands = dict(zip(("a", "scale_a", "b", "scale_b"), make_operands(m, n, k, seed=rng.randrange(8))), d=d)
    return Call((m, n, k), operands, buffer)


# Changes; most can leave a call valid or make it invalid, which the oracle decides.


def change_strides(call: Call, rng: random.Random, name: str) -> None:
    """Move an operand's values into other strides: padded, transposed, overlapping or repeated rows."""
    tensor = call.operands[name]
    rows, columns = tensor.shape
    inner = rng.choice((1, 1, 1, 2, rows or 1))
    pitch = rng.choice(
        (
            0,
            1,
            columns * inner + 16,
            align(columns * inner, 16),
            columns * inner + rng.randint(0, 20),
            max(columns - 1, 0),
        )
    )
    memory = torch.zeros(rows * max(pitch, 1) + columns * inner + 64, dtype=torch.float32).to(tensor.dtype)
    moved = memory.as_strided((rows, columns), (pitch, inner))
    if name != "d" and pitch >= columns * inner:
        moved.copy_(tensor)
    call.operands[name] = moved


def change_offset(call: Call, rng: random.Random, name: str) -> None:
    """Start an operand some elements into its memory."""
    tensor, offset = call.operands[name], rng.choice((1, 2, 3, 4, 7, 8, 15, 16, 32))
    rows, columns = tensor.shape
    pitch = align(columns, 16) + 16
    memory = torch.zeros(rows * pitch + offset, dtype=torch.float32).to(tensor.dtype)
    moved = memory.as_strided((rows, columns), (pitch, 1), offset)
    if name != "d":
        moved.copy_(tensor)
    call.operands[name] = moved


def change_dtype(call: Call, rng: random.Random, name: str) -> None:
    """Give an operand another dtype."""
    call.operands[name] = (
        call.operands[name]
        .float()
        .to(rng.choice((torch.float16, torch.float64, torch.int8, torch.int32, torch.float8_e5m2, FP32, BF16)))
    )


def change_rank(call: Call, rng: random.Random, name: str) -> None:
    """Add or drop a dimension."""
    tensor = call.operands[name]
    call.operands[name] = tensor[None] if rng.random() < 0.5 or not tensor.shape[0] else tensor[0]


def change_rows(call: Call, rng: random.Random, name: str) -> None:
    """Cut or widen one dimension by one."""
    tensor, dim = call.operands[name], rng.randrange(call.operands[name].dim())
    sizes = list(tensor.shape)
    sizes[dim] = max(sizes[dim] + rng.choice((-1, 1)), 0)
    call.operands[name] = torch.zeros(align(sizes[0], 1), align(sizes[-1], 16)).to(tensor.dtype)[:, : sizes[-1]]


def change_device(call: Call, rng: random.Random, name: str) -> None:
    """Put one operand, or all, on the meta device."""
    for each in rng.choice(((name,), tuple(call.operands))):
        if isinstance(call.operands[each], torch.Tensor):
            call.operands[each] = call.operands[each].to("meta")


def change_type(call: Call, rng: random.Random, name: str) -> None:
    """Pass something that is no tensor."""
    call.operands[name] = rng.choice((None, 3, 2.5, "tensor", [1, 2], (), object(), torch.float32, torch.zeros))


def change_grad(call: Call, rng: random.Random, name: str) -> None:
    """Ask for a gradient."""
    call.operands[name] = call.operands[name].detach().requires_grad_()


def change_memory(call: Call, rng: random.Random, name: str) -> None:
    """Let D lie in the memory of another operand."""
    other = call.operands[rng.choice(("a", "b", "scale_a", "scale_b"))]
    if not isinstance(other, torch.Tensor) or other.is_meta or other.requires_grad:
        return
    m, n, _ = call.shape
    memory = torch.as_strided(other, (other.untyped_storage().nbytes() // other.element_size(),), (1,), 0).view(
        torch.uint8
    )
    if memory.numel() >= 2 * m * align(n, 8):
        call.operands["d"] = memory[: 2 * m * align(n, 8)].view(BF16).view(m, align(n, 8))[:, :n]


OPTIONS = (
    {"alpha": 0.5},
    {"alpha": -3},
    {"compiled_dims": "nk"},
    {"recipe": (1, 128, 128)},
    {"disable_ue8m0_cast": True},
    {"stream": None},
    {"beta": 0.5},
    {"alpha": "x"},
    {"alpha": float("inf")},
    {"compiled_dims": "xyz"},
    {"recipe": (1, 2, 128)},
    {"recipe": 5},
    {"stream": "main"},
    {"stream": -1},
    {"beta": None},
    {"unknown": 1},
    {"c": 0},
    {"disable_ue8m0_cast": 2},
)
NUM_VALID_OPTIONS = 7


def change_options(call: Call, rng: random.Random, name: str) -> None:
    """Pass a further argument, right or wrong."""
    index = rng.randrange(len(OPTIONS))
    call.options.update(OPTIONS[index])
    call.changes.append("" if index < NUM_VALID_OPTIONS else "invalid option")


CHANGES = (
    change_strides,
    change_strides,
    change_strides,
    change_offset,
    change_offset,
    change_dtype,
    change_rank,
    change_rows,
    change_device,
    change_type,
    change_grad,
    change_memory,
    change_options,
    change_options,
)


# The oracle.


def is_valid(call: Call) -> bool:
    """Whether the rules of the op allow the call."""
    tensors = call.operands
    if "invalid option" in call.changes or not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        return False
    if tensors["d"].requires_grad or len({tensor.device for tensor in tensors.values()}) > 1:
        return False
    if any(tensors[name].dtype not in dtypes or tensors[name].dim() != 2 for name, dtypes in DTYPES.items()):
        return False
    return has_valid_shapes(**{name: tuple(tensor.shape) for name, tensor in tensors.items()}) and has_valid_layout(
        tensors
    )


def has_valid_shapes(a, scale_a, b, scale_b, d) -> bool:
    """Whether the sizes agree."""
    (m, k), n = a, b[0]
    steps, blocks = -(-k // 128), -(-n // 128)
    return b == (n, k) and scale_a == (m, steps) and scale_b == (blocks, steps) and d == (m, n)


def has_valid_layout(tensors: dict) -> bool:
    """Whether strides, alignment and memory are as the kernels need them; nothing is asked of operands without work."""
    (m, n), k = tensors["d"].shape, tensors["a"].shape[1]
    if m == 0 or n == 0:
        return True
    inputs = ("a", "b") if k else ()
    if not has_valid_rows(tensors["d"]) or not all(
        has_valid_rows(tensors[name]) or has_valid_rows(tensors[name].t()) for name in inputs
    ):
        return False
    if tensors["d"].is_meta or not k:
        return True
    written = addresses(tensors["d"])
    return not any(torch.isin(written, addresses(tensors[name])).any() for name in ("a", "scale_a", "b", "scale_b"))


def has_valid_rows(tensor: torch.Tensor) -> bool:
    """Whether rows are contiguous, separate, and 16-byte aligned."""
    (rows, columns), (pitch, inner) = tensor.shape, tensor.stride()
    if columns > 1 and inner != 1:
        return False
    if rows > 1 and (pitch < columns or pitch * tensor.element_size() % 16):
        return False
    return tensor.is_meta or tensor.data_ptr() % 16 == 0


def addresses(tensor: torch.Tensor) -> torch.Tensor:
    """Return the address of every 2 bytes that the elements of `tensor` touch."""
    (rows, columns), (pitch, inner), size = tensor.shape, tensor.stride(), tensor.element_size()
    starts = tensor.data_ptr() + (torch.arange(rows)[:, None] * pitch + torch.arange(columns) * inner) * size
    return torch.cat([(starts + byte).flatten() // 2 for byte in range(0, size, 2)]).unique()


# Judging.


def run_call(call: Call) -> str:
    """Make the call and return what is wrong with its outcome, or ""."""
    valid = is_valid(call)
    inputs = None if not valid else {name: call.operands[name].clone() for name in ("a", "scale_a", "b", "scale_b")}
    memory_before = call.buffer.clone()
    try:
        pairs = (call.operands["a"], call.operands["scale_a"]), (call.operands["b"], call.operands["scale_b"])
        result = deep_gemm.fp8_gemm_nt(*pairs, call.operands["d"], **call.options)
    except DeepGemmError as error:
        if valid:
            return f"valid call refused: {error}"
        return "" if torch.equal(call.buffer, memory_before) else "wrote before the error"
    if not valid:
        return "invalid call accepted"
    return judge_result(call, inputs) if result is None else f"returned {result!r}"


def judge_result(call: Call, inputs: dict) -> str:
    """Return what is wrong with D and the memory around it, or ""."""
    m, n, _ = call.shape
    d, alpha = call.operands["d"], call.options.get("alpha", 1.0)
    if d.is_meta:
        return ""
    inside = torch.zeros_like(call.buffer, dtype=torch.bool)
    inside[GUARD_ROWS : GUARD_ROWS + m, GUARD_COLUMNS : GUARD_COLUMNS + n] = True
    if (call.buffer != -1)[~inside].any():
        return "wrote outside D"
    expected, magnitude = make_reference(**inputs)
    wrong = count_wrong(d, expected * alpha, magnitude * abs(alpha))
    return f"{wrong} wrong elements" if wrong else ""


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(3, 50))])
def test_fuzzed_calls(seed):
    """A right result or a typed error, and nothing else."""
    rng, failures, outcomes = random.Random(seed), [], {True: 0, False: 0}
    for _ in range(CALLS_PER_TEST):
        call = make_call(rng)
        for change in rng.sample(CHANGES, rng.choice((0, 1, 1, 1, 2))):
            name = rng.choice(tuple(DTYPES))
            if (
                isinstance(call.operands[name], torch.Tensor)
                and call.operands[name].dim() == 2
                and not call.operands[name].is_meta
            ):
                change(call, rng, name)
                call.changes.append(f"{change.__name__} {name}")
        outcomes[is_valid(call)] += 1
        verdict = run_call(call)
        if verdict:
            failures.append(f"{call.shape} {call.changes} {call.options}: {verdict}")
    assert not failures
    assert min(outcomes.values()) >= CALLS_PER_TEST // 4, "the fuzzer lost its balance"


M, N, K = 20, 264, 272


def run_fixed(**changes):
    """Call the op on valid operands of one shape with `changes`."""
    a, scale_a, b, scale_b = make_operands(M, N, K)
    operands = {"a": a, "b": b, "d": torch.empty(M, N, dtype=BF16)} | changes
    deep_gemm.fp8_gemm_nt((operands["a"], scale_a), (operands["b"], scale_b), operands["d"])


def wide(rows, columns, pitch, offset=0):
    """Return an FP8 matrix inside a wider one, `offset` elements from the start of its rows."""
    return torch.ones(rows, pitch + offset).to(FP8)[:, offset : offset + columns]


@pytest.mark.parametrize("offset", range(1, 17))
def test_alignment_of_16_bytes(offset):
    """A base 1-15 bytes off is refused for A, B and D; 16 works."""
    cases = {
        "a": {"a": wide(M, K, align(K, 16) + 16 - offset % 16, offset)},
        "b": {"b": wide(N, K, align(K, 16) + 16 - offset % 16, offset)},
    }
    if offset % 2 == 0:
        cases["d"] = {"d": torch.empty(M, N + 8, dtype=BF16)[:, offset // 2 :][:, :N]}
    for name, changes in cases.items():
        if offset == 16:
            run_fixed(**changes)
        else:
            with pytest.raises(
                LayoutError,
                match=rf"{name}.data_ptr\(\) = \d+ \({offset} bytes past a multiple of 16\): must be 16-byte aligned",
            ):
                run_fixed(**changes)


@pytest.mark.parametrize("extra", range(1, 17))
def test_pitch_of_16_bytes(extra):
    """A row pitch that is no multiple of 16 bytes is refused; 16 more bytes work."""
    for name, rows in (("a", M), ("b", N)):
        if extra == 16:
            run_fixed(**{name: wide(rows, K, K + extra)})
        else:
            with pytest.raises(LayoutError, match=rf"{name}.stride\(0\) = {K + extra} "):
                run_fixed(**{name: wide(rows, K, K + extra)})


@pytest.mark.parametrize("m, n, k", [(1 << 31, 8, 16), (8, 1 << 31, 16), (8, 8, 1 << 31)])
def test_sizes_beyond_31_bits(m, n, k):
    """A size of 2^31 is refused by name; 2^31 - 1 passes the checks."""

    def run(m, n, k):
        steps, blocks = -(-k // 128), -(-n // 128)
        data = [torch.empty_strided((rows, k), (align(k, 16), 1), dtype=FP8, device="meta") for rows in (m, n)]
        scales = [torch.empty(m, steps, device="meta"), torch.empty(blocks, steps, device="meta")]
        d = torch.empty_strided((m, n), (align(n, 8), 1), dtype=BF16, device="meta")
        deep_gemm.fp8_gemm_nt((data[0], scales[0]), (data[1], scales[1]), d)

    name = "mnk"[[m, n, k].index(1 << 31)]
    with pytest.raises(
        ShapeError, match=rf"{name} = 2147483648: sizes must be below 2\^31; split the product along {name}"
    ):
        run(m, n, k)
    run(*(min(size, (1 << 31) - 1) for size in (m, n, k)))


def test_pitch_beyond_40_bits():
    a = torch.empty_strided((2, K), (1 << 40, 1), dtype=FP8, device="meta")
    rest = [tensor.to("meta") for tensor in make_operands(2, N, K)[1:]]
    with pytest.raises(LayoutError, match=r"a.stride\(0\) = 1099511627776: rows must be less than 2\^40 bytes apart"):
        deep_gemm.fp8_gemm_nt((a, rest[0]), (rest[1], rest[2]), torch.empty(2, N, dtype=BF16, device="meta"))


@pytest.mark.parametrize("m, n, k", list(itertools.product((0, 20), (0, 136), (0, 272))))
@pytest.mark.parametrize("kind, bits", [(BF16, torch.int16), (torch.float32, torch.int32)])
def test_zero_sizes(m, n, k, kind, bits):
    """m or n = 0 returns; k = 0 writes C, or zeros without one, and nothing beside it."""
    buffer = torch.full((m + 2, align(n, 8) + 16), -1, dtype=bits)
    d, plain = buffer.view(kind)[1 : 1 + m, 8 : 8 + n], torch.zeros(m, n, dtype=kind)
    a, a_scale, b, b_scale = operands = make_operands(m, n, k)
    c = torch.randn(m, n) if kind == torch.float32 else None
    deep_gemm.fp8_gemm_nt((a, a_scale), (b, b_scale), d, c=c)
    if m and n and k:
        deep_gemm.fp8_gemm_nt((a, a_scale), (b, b_scale), plain)
        assert count_wrong(plain, *make_reference(*operands)) == 0
    assert torch.allclose(d, plain if c is None else c + plain, rtol=1e-5 if k else 0, atol=1e-4 if k else 0)
    d.view(bits).fill_(-1)
    assert (buffer == -1).all(), "wrote outside D"
