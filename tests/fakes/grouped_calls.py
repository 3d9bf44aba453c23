"""Calls of the grouped ops on described operands, and fakes of what they need besides the driver."""

import types

import deep_gemm
from deep_gemm import plan, stream
from deep_gemm.jit import build
from tests.fakes import stub_operands
from tests.fakes.stub_driver import use_fake_build
from tests.fakes.stub_operands import GROUPS, grouped_view, view

M, N, K, G = 256, 384, 512, 3
KS = [256, 0, 256]
COPY, KS_TENSOR = 1 << 47, 1 << 49
E4M3, BF16, FP32 = "float8_e4m3fn", "bfloat16", "float32"


class Fakes:
    """What a call needs of the package besides the driver: plans that compile nothing, memory from nowhere.

    Records what was asked for.
    """

    def __init__(self):
        self.planned, self.memory, self.ks, self.copies = [], [], [], []

    def plan(self, problem, ordinal):
        """Plan as the package does."""
        self.planned.append(problem.as_dict())
        return self.plan_one(problem, ordinal)

    def empty_fp8(self, rows, columns, ordinal, handle):
        """Return memory that nobody reads, another one each time."""
        self.memory.append((rows, columns, handle))
        return view(COPY + (len(self.memory) << 40), (rows, columns), (columns, 1), E4M3, ordinal)

    def make_ks_tensor(self, ks, ordinal, handle):
        """Return the same for K of groups."""
        self.ks.append((ks, handle))
        return view(KS_TENSOR, (len(ks),), (1,), "int32", ordinal)

    def __enter__(self):
        use_fake_build()
        build.get_cubin_for_source = lambda source, name, **options: types.SimpleNamespace(
            cubin=b"transposing", kernel_name=name
        )
        self.plan_one, plan.plan = plan.plan, self.plan
        stream.empty_fp8, stream.make_ks_tensor = self.empty_fp8, self.make_ks_tensor
        stream.copy_matrices = lambda d, c, handle: self.copies.append(handle)
        return self

    def __exit__(self, *_):
        plan.plan = self.plan_one


def tensor(address, shape, dtype):
    """Describe [..., rows, columns] as the caller passes it: in padded rows."""
    return grouped_view(address, shape, dtype)


def fp8_pair(letter, shape, scale_shape):
    """Describe (data, scales) as a caller passes them, in padded rows."""
    data, scales = {"a": (stub_operands.A, stub_operands.SCALE_A), "b": (stub_operands.B, stub_operands.SCALE_B)}[
        letter
    ]
    return tensor(data, shape, E4M3), tensor(scales, scale_shape, FP32)


def m_indices(m=M):
    return view(GROUPS, (m,), (1,), "int32")


def call_contiguous(
    op="m_grouped_fp8_gemm_nt_contiguous", m=M, n=N, k=K, num_groups=G, b=None, d_dtype=BF16, recipe=None, **options
):
    """Call an m-grouped contiguous op."""
    is_fp8, is_nn = "fp8" in op, "_nn_" in op
    steps, scale_rows = -(-k // 128), n if recipe == (1, 1, 128) else -(-n // 128)
    shape_b, shape_scales = (
        ((num_groups, k, n), (num_groups, steps, scale_rows))
        if is_nn
        else ((num_groups, n, k), (num_groups, scale_rows, steps))
    )
    a = fp8_pair("a", (m, k), (m, steps)) if is_fp8 else tensor(stub_operands.A, (m, k), BF16)
    given = fp8_pair("b", shape_b, shape_scales) if is_fp8 else tensor(stub_operands.B, shape_b, BF16)
    given = given if b is None else (b, given[1])
    options |= {"recipe": recipe} if recipe else {}
    getattr(deep_gemm, op)(a, given, tensor(stub_operands.D, (m, n), d_dtype), m_indices(m), **options)


def call_masked(op="m_grouped_fp8_gemm_nt_masked", m=M, n=N, k=K, num_groups=G, expected_m=20, **options):
    """Call a masked op."""
    steps, blocks = -(-k // 128), -(-n // 128)
    a, b = tensor(stub_operands.A, (num_groups, m, k), BF16), tensor(stub_operands.B, (num_groups, n, k), BF16)
    if "fp8" in op:
        a, b = (
            fp8_pair("a", (num_groups, m, k), (num_groups, m, steps)),
            fp8_pair("b", (num_groups, n, k), (num_groups, blocks, steps)),
        )
    getattr(deep_gemm, op)(
        a,
        b,
        tensor(stub_operands.D, (num_groups, m, n), BF16),
        view(GROUPS, (num_groups,), (1,), "int32"),
        expected_m,
        **options,
    )


def call_k_grouped(op="k_grouped_fp8_gemm_tn_contiguous", m=M, n=N, ks=KS, c=None, has_tensor=True, **options):
    """Call a k-grouped op; c: None, "d" or "c"."""
    sum_k, num_groups = sum(ks), len(ks)
    steps = sum_k // 128
    if "bf16" in op:
        a, b = tensor(stub_operands.A, (sum_k, m), BF16), tensor(stub_operands.B, (sum_k, n), BF16)
    elif "_tn_" in op:
        a, b = fp8_pair("a", (sum_k, m), (steps, m)), fp8_pair("b", (sum_k, n), (steps, n))
    else:
        a = view(stub_operands.A, (m * sum_k,), (1,), E4M3), tensor(stub_operands.SCALE_A, (m, steps), FP32)
        b = view(stub_operands.B, (n * sum_k,), (1,), E4M3), tensor(stub_operands.SCALE_B, (n, steps), FP32)
    d = tensor(stub_operands.D, (num_groups, m, n), FP32)
    c = {None: None, "d": d, "c": tensor(stub_operands.C, (num_groups, m, n), FP32)}[c]
    options |= {"ks_tensor": view(GROUPS, (num_groups,), (1,), "int32")} if has_tensor else {}
    getattr(deep_gemm, op)(a, b, d, ks, c=c, **options)


def record(function, *arguments, **options):
    """Call once with fakes; return (planned problems, memory asked for, ks copied, copies of C)."""
    with Fakes() as fakes:
        function(*arguments, **options)
    return fakes.planned, fakes.memory, fakes.ks, fakes.copies
