"""The checks of fp8_gemm_nt: every wrong argument is a typed error that says value, rule and remedy, before D is
written.
"""

import numpy as np
import pytest
import torch

import deep_gemm
from deep_gemm.errors import ArgumentError, DeviceError, DtypeError, LayoutError, ShapeError
from tests.fakes.operands import make_fp8, make_operands, make_output

M, N, K = 20, 264, 272


class Wrapper(torch.Tensor):
    """A tensor subclass with memory elsewhere, as far as torch tells."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError("the op must not dispatch")


class Weight(torch.nn.Parameter):
    """A serving framework's parameter: a subclass that changes no dispatch."""


def call(**changes):
    """Call the op on valid operands with `changes`; D must stay poisoned if it raises."""
    a, scale_a, b, scale_b = make_operands(M, N, K)
    operands = {"a": a, "scale_a": scale_a, "b": b, "scale_b": scale_b, "d": make_output(M, N)} | changes
    options = {name: value for name, value in operands.items() if name not in ("a", "scale_a", "b", "scale_b", "d")}
    deep_gemm.fp8_gemm_nt(
        (operands["a"], operands["scale_a"]), (operands["b"], operands["scale_b"]), operands["d"], **options
    )
    return operands["d"]


def wide(rows, columns, pitch, offset=0):
    """Return an FP8 matrix inside a wider one, `offset` elements from the start of its rows."""
    return torch.ones(rows, pitch + offset).to(torch.float8_e4m3fn)[:, offset : offset + columns]


def bf16(rows, columns, **options):
    return torch.empty(rows, columns, dtype=torch.bfloat16, **options)


WRONG = {
    "a is a list": ({"a": [1.0]}, ArgumentError, r"a = an object of type list: must be a torch.Tensor"),
    "scale is None": (
        {"scale_a": None},
        ArgumentError,
        r"scale_a = an object of type NoneType: must be a torch.Tensor",
    ),
    "b is an array": ({"b": np.zeros((N, K))}, ArgumentError, r"b = an object of type ndarray"),
    "a is a wrapper": (
        {"a": torch.zeros(M, K).as_subclass(Wrapper)},
        ArgumentError,
        r"a = a Wrapper: wrapper tensors.*plain torch.Tensor",
    ),
    "a is sparse": ({"a": torch.eye(M).to_sparse()}, ArgumentError, r"a: a tensor without plain strided memory"),
    "d requires grad": (
        {"d": bf16(M, N).requires_grad_()},
        ArgumentError,
        r"d.requires_grad = True: it is written.*torch.no_grad\(\).*d.detach",
    ),
    "scale is negated": (
        {"scale_a": torch.ones(M, 3, dtype=torch.complex64).conj().imag},
        ArgumentError,
        r"scale_a: a lazily negated view.*resolve_neg",
    ),
    "a is BF16": ({"a": bf16(M, K)}, DtypeError, r"a.dtype = torch.bfloat16: must be torch.float8_e4m3fn; quantise"),
    "b is E5M2": (
        {"b": torch.zeros(N, K).to(torch.float8_e5m2)},
        DtypeError,
        r"b.dtype = torch.float8_e5m2: must be torch.float8_e4m3fn",
    ),
    "packed scales": (
        {"scale_a": torch.ones(M, 3, dtype=torch.int32)},
        DtypeError,
        r"scale_a.dtype = torch.int32: must be torch.float32; scales stay FP32",
    ),
    "d is FP16": (
        {"d": torch.empty(M, N, dtype=torch.float16)},
        DtypeError,
        r"d.dtype = torch.float16: must be torch.bfloat16 or torch.float32; allocate",
    ),
    "a has rank 3": ({"a": make_fp8(M, K)[None]}, ShapeError, r"a.ndim = 3: must be a matrix \[m, k\]"),
    "a has rank 6": ({"a": make_fp8(M, K)[None, None, None, None]}, ShapeError, r"a.ndim = 6"),
    "scale has rank 1": (
        {"scale_a": torch.ones(M)},
        ShapeError,
        r"scale_a.ndim = 1: must be a matrix \[m, ceil\(k / 128\)\]",
    ),
    "other k": ({"b": make_fp8(N, K + 16)}, ShapeError, r"b.shape = \[264, 288\]: must be \[n, k\] = \[264, 272\]"),
    "scales of a": (
        {"scale_a": torch.ones(M, 2)},
        ShapeError,
        r"scale_a.shape = \[20, 2\]: must be \[m, ceil\(k / 128\)\] = \[20, 3\]",
    ),
    "scales of b": ({"scale_b": torch.ones(3, 2)}, ShapeError, r"scale_b.shape = \[3, 2\]: must be .* = \[3, 3\]"),
    "d transposed": ({"d": bf16(N, M)}, ShapeError, r"d.shape = \[264, 20\]: must be \[m, n\] = \[20, 264\]"),
    "pitch of a": (
        {"a": wide(M, K, 280)},
        LayoutError,
        r"a.stride\(0\) = 280 \(k = 272\): FP8 rows must be a multiple of 16 bytes apart.*pad a along k",
    ),
    "pitch of b": ({"b": wide(N, K, 273)}, LayoutError, r"b.stride\(0\) = 273 .*pad b along k"),
    "pitch of d": (
        {"d": bf16(M, 268)[:, :N]},
        LayoutError,
        r"d.stride\(0\) = 268 \(n = 264\): BF16 rows .*these are 536; allocate d padded along n and slice it",
    ),
    "a is MN-major": (
        {"a": wide(K, M, 40).t()},
        LayoutError,
        r"a.stride\(1\) = 40 \(m = 20\): FP8 rows.*pad a along m",
    ),
    "a is contiguous nowhere": (
        {"a": make_fp8(M, 2 * K)[:, ::2]},
        LayoutError,
        r"a.stride\(1\) = 2: FP8 rows must be contiguous along k; pass a.contiguous\(\)",
    ),
    "d is transposed memory": ({"d": bf16(N, 24).t()[:M]}, LayoutError, r"d.stride\(1\) = 24"),
    "a starts odd": (
        {"a": wide(M, K, 288, 3)},
        LayoutError,
        r"a.stride\(0\) = 291|a.data_ptr\(\) = \d+ \(3 bytes past",
    ),
    "d is expanded": (
        {"d": bf16(1, N).expand(M, N)},
        LayoutError,
        r"d.stride\(0\) = 0: rows of 264 elements must not overlap",
    ),
    "a is expanded": (
        {"a": make_fp8(1, K).expand(M, K)},
        LayoutError,
        r"a.stride\(0\) = 0: rows of 272 elements must not overlap; pass a.contiguous",
    ),
    "recipe 1D1D": (
        {"recipe": (1, 1, 128)},
        ShapeError,
        r"scale_b.shape = \[3, 3\]: must be \[n, ceil\(k / 128\)\] = \[264, 3\]",
    ),
    "recipe 2D2D": ({"recipe": (128, 128, 128)}, ArgumentError, r"recipe = \(128, 128, 128\): must be \(1, 128, 128\)"),
    "recipe text": ({"recipe": "1d2d"}, ArgumentError, r"recipe = '1d2d'"),
    "recipe of floats": ({"recipe": (1.0, 128, 128)}, ArgumentError, r"recipe = \(1.0, 128, 128\)"),
    "recipe of huge numbers": ({"recipe": (1 << 80, 128, 128)}, ArgumentError, r"recipe = "),
    "compiled dims": (
        {"compiled_dims": "nkx"},
        ArgumentError,
        r"compiled_dims = 'nkx': must hold each of m, n, k at most once",
    ),
    "compiled dims twice": ({"compiled_dims": "kk"}, ArgumentError, r"compiled_dims = 'kk'"),
    "compiled dims that are no text": ({"compiled_dims": "\udc80"}, ArgumentError, r"compiled_dims = "),
    "compiled dims no text": ({"compiled_dims": 3}, ArgumentError, r"compiled_dims = 3: must be a string"),
    "flag": ({"disable_ue8m0_cast": "yes"}, ArgumentError, r"disable_ue8m0_cast = 'yes': must be a bool"),
    "alpha NaN": ({"alpha": float("nan")}, ArgumentError, r"alpha = nan: must be finite in FP32"),
    "alpha beyond FP32": ({"alpha": 1e39}, ArgumentError, r"alpha = 1e\+39: must be finite in FP32"),
    "alpha text": ({"alpha": "1"}, ArgumentError, r"alpha = '1': must be a number"),
    "alpha tensor": ({"alpha": torch.ones(())}, ArgumentError, r"alpha = an object of type Tensor: must be a number"),
    "beta None": ({"beta": None}, ArgumentError, r"beta = None: must be a number"),
    "stream": ({"stream": "main"}, ArgumentError, r"stream = 'main': must be a torch.cuda.Stream"),
    "unknown": ({"accumulate": True}, ArgumentError, r"fp8_gemm_nt\(\): unknown argument 'accumulate'; see help"),
    "scale on meta": (
        {"scale_b": torch.ones(3, 3, device="meta")},
        DeviceError,
        r"scale_b is on meta and a on cpu: all operands must be on one device",
    ),
    "d on meta": ({"d": bf16(M, N, device="meta")}, DeviceError, r"d is on meta and a on cpu"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_argument(name):
    changes, error, message = WRONG[name]
    d = changes.get("d", make_output(M, N))
    before = d.detach().clone() if d.device.type == "cpu" else None
    with pytest.raises(error, match=message):
        call(**({"d": d} | changes))
    bits = {2: torch.int16, 4: torch.int32}[d.element_size()]
    assert before is None or torch.equal(before.view(bits), d.detach().view(bits))


def overlapping(kind):
    """Return operands of which D lies in another's memory."""
    memory = torch.zeros(1 << 16, dtype=torch.uint8)
    d = memory[:16384].view(torch.bfloat16).view(32, 256)[:, :128]
    if kind == "a":
        return {"a": memory[8192 : 8192 + 32 * 512].view(torch.float8_e4m3fn).view(32, 512)[:, :256], "d": d}
    if kind == "scale_a":
        return {"scale_a": memory[:256].view(torch.float32).view(32, 2), "d": d}
    return {"a": memory[: 32 * 512].view(torch.float8_e4m3fn).view(32, 512)[:, 128:384], "d": d}


@pytest.mark.parametrize("kind, name", [("a", "a"), ("columns", "a"), ("scale_a", "scale_a")])
def test_output_that_overlaps(kind, name):
    a, scale_a, b, scale_b = make_operands(32, 128, 256)
    operands = {"a": a, "scale_a": scale_a, "b": b, "scale_b": scale_b} | overlapping(kind)
    with pytest.raises(LayoutError, match=f"d overlaps {name} in memory: the output must be separate"):
        deep_gemm.fp8_gemm_nt((operands["a"], operands["scale_a"]), (b, scale_b), operands["d"])


def test_output_beside_an_input_in_one_buffer_is_right():
    a, scale_a, b, scale_b = make_operands(32, 128, 256)
    buffer = torch.zeros(32, 512, dtype=torch.uint8)
    inside, d = buffer[:, :256].view(torch.float8_e4m3fn), buffer[:, 256:].view(torch.bfloat16)
    inside.copy_(a)
    expected = make_output(32, 128)
    deep_gemm.fp8_gemm_nt((a, scale_a), (b, scale_b), expected)
    deep_gemm.fp8_gemm_nt((inside, scale_a), (b, scale_b), d)
    assert torch.equal(d, expected)


def test_scales_need_the_alignment_of_a_float():
    memory = torch.zeros(4 * M * 3 + 4, dtype=torch.uint8)
    odd = torch.frombuffer(memory.numpy()[1:], dtype=torch.float32, count=M * 3).view(M, 3)
    with pytest.raises(LayoutError, match=r"scale_a.data_ptr\(\) .*4-byte aligned"):
        call(scale_a=odd)


def odd_output():
    """Return a D whose memory starts 2 bytes past a multiple of 16."""
    memory = torch.zeros(M * N + 8, dtype=torch.bfloat16)
    return memory[1 : 1 + M * N].view(M, N)


OUTPUTS = {
    "transposed memory": (lambda: bf16(N, 24).t()[:M], r"d.stride\(1\) = 24: .*; allocate d contiguous\.$"),
    "rows overlap": (lambda: bf16(1, N).expand(M, N), r"must not overlap; allocate d contiguous\.$"),
    "pitch": (lambda: bf16(M, 268)[:, :N], r"these are 536; allocate d padded along n and slice it\.$"),
    "alignment": (odd_output, r"16-byte aligned; allocate it apart or slice at a multiple of 16 bytes\.$"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_advice_about_the_output_keeps_the_result(name):
    make, message = OUTPUTS[name]
    with pytest.raises(LayoutError, match=message) as caught:
        call(d=make())
    assert "contiguous()" not in str(caught.value) and "clone()" not in str(caught.value)


LIKELY_TRANSPOSED = "it is transposed: pass {0}.mT, or call the function for this layout"


@pytest.mark.parametrize("wrong", ["a", "b"])
def test_a_transposed_operand_is_told_the_sizes_of_the_others(wrong):
    shapes = {"a": [M, K], "b": [N, K]}
    shown = {name: list(reversed(shape)) if name == wrong else shape for name, shape in shapes.items()}
    dims = {"a": "[m, k]", "b": "[n, k]"}[wrong]
    with pytest.raises(ShapeError) as caught:
        deep_gemm.bf16_gemm_nt(bf16(*shown["a"]), bf16(*shown["b"]), bf16(M, N))
    told = f"{wrong}.shape = {shown[wrong]}: must be {dims} = {shapes[wrong]}; {LIKELY_TRANSPOSED.format(wrong)}"
    assert str(caught.value).startswith(told)


def test_a_size_that_no_other_operand_has_is_named():
    a, b = (make_fp8(M, 256), torch.ones(M, 2)), (make_fp8(256, 128), torch.ones(2, 1))
    with pytest.raises(ShapeError, match=r"b.shape = \[256, 128\]: must be \[n, k\] = \[n, 256\]; it is transposed"):
        deep_gemm.fp8_gemm_nt_skip_head_mid(a, b, bf16(M, 192), (64, 64, 64))


def test_missing_and_repeated_arguments():
    a, scale_a, b, scale_b = make_operands(M, N, K)
    for arguments, message in (
        ((), "'a' is missing"),
        (((a, scale_a),), "'b' is missing"),
        (((a, scale_a), (b, scale_b)), "'d' is missing"),
    ):
        with pytest.raises(ArgumentError, match=message):
            deep_gemm.fp8_gemm_nt(*arguments)
    with pytest.raises(ArgumentError, match="'d' was given twice"):
        deep_gemm.fp8_gemm_nt((a, scale_a), (b, scale_b), make_output(M, N), d=make_output(M, N))
    with pytest.raises(ArgumentError, match="8 positional arguments: takes at most 7"):
        deep_gemm.fp8_gemm_nt((a, scale_a), (b, scale_b), make_output(M, N), None, None, None, False, 1.0)


@pytest.mark.parametrize("pair", [None, 5, "ab", (1,), (1, 2, 3), torch.zeros(2, 2)])
def test_operands_come_in_pairs(pair):
    with pytest.raises(ArgumentError, match=r"a = .*: FP8 operands are pairs \(data, scales\)"):
        deep_gemm.fp8_gemm_nt(pair, pair, None)


def test_accepted_spellings():
    plain = call()
    for options in (
        {"c": None, "recipe": None, "compiled_dims": None},
        {"recipe": [1, 128, 128], "disable_ue8m0_cast": True},
        {"recipe": tuple(np.array([1, 128, 128]))},
        {"compiled_dims": "kn"},
        {"compiled_dims": "", "beta": 3},
        {"alpha": 1},
        {"alpha": np.float32(1.0)},
        {"alpha": True},
        {"stream": None},
        {"stream": 0},
    ):
        assert torch.equal(call(**options), plain), options
    a, scale_a, b, scale_b = make_operands(M, N, K)
    for pairs in (
        ([a, scale_a], [b, scale_b]),
        ((Weight(a, False), scale_a), (torch.nn.Parameter(b, False), Weight(scale_b, False))),
    ):
        d = make_output(M, N)
        assert deep_gemm.fp8_gemm_nt(*pairs, d) is None
        assert torch.equal(d, plain)
    d = make_output(M, N)
    deep_gemm.fp8_gemm_nt((a, scale_a), d=d, b=(b, scale_b))
    assert torch.equal(d, plain)


def test_without_grad_mode_parameters_are_inputs():
    with torch.no_grad():
        scale = torch.nn.Parameter(make_operands(M, N, K)[1])
        assert torch.equal(call(scale_a=scale), call())
    with torch.inference_mode():
        call()


def test_fake_and_meta_tensors_are_checked_and_nothing_else():
    from torch._subclasses.fake_tensor import FakeTensorMode

    a, scale_a, b, scale_b = make_operands(M, N, K)
    meta = [tensor.to("meta") for tensor in (a, scale_a, b, scale_b, make_output(M, N))]
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(tensor) for tensor in (a, scale_a, b, scale_b, make_output(M, N))]
    for operands in (meta, fake):
        assert deep_gemm.fp8_gemm_nt((operands[0], operands[1]), (operands[2], operands[3]), operands[4]) is None
        with pytest.raises(ShapeError):
            deep_gemm.fp8_gemm_nt((operands[0], operands[1]), (operands[2], operands[3]), operands[4][:, :8])
    with pytest.raises(DeviceError):
        deep_gemm.fp8_gemm_nt((fake[0], scale_a), (b, scale_b), make_output(M, N))


def test_batched_tensors_of_vmap():
    a, scale_a, b, scale_b = make_operands(M, N, K)

    def run(scale):
        deep_gemm.fp8_gemm_nt((a, scale), (b, scale_b), make_output(M, N))
        return scale

    with pytest.raises(ArgumentError, match="scale_a: a tensor without plain strided memory"):
        torch.func.vmap(run)(torch.stack([scale_a, scale_a]))


@pytest.mark.parametrize("value", [-1, 65536, 1.5, "4", None, True])
def test_num_sms_range(value):
    with pytest.raises(ArgumentError, match="num_sms = "):
        deep_gemm.set_num_sms(value)
    assert deep_gemm.get_num_sms() == 0


class Unprintable:
    def __repr__(self):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "value, text",
    [
        ("é" * 100, "'" + "é" * 38 + "..."),  # 77 bytes, which would end inside a character
        ("x" + "é" * 100, "'x" + "é" * 37 + "..."),
        ("\ud800" * 3, r"'\ud800\ud800\ud800'"),
        (Unprintable(), "<unprintable>"),
    ],
)
def test_any_value_can_be_shown(value, text):
    with pytest.raises(ArgumentError) as caught:
        deep_gemm.set_num_sms(value)
    assert str(caught.value).startswith(f"num_sms = {text}: must be an integer")


def test_num_sms_is_kept():
    default = deep_gemm.get_num_sms()
    deep_gemm.set_num_sms(100)
    try:
        assert deep_gemm.get_num_sms() == 100
    finally:
        deep_gemm.set_num_sms(0)
    assert deep_gemm.get_num_sms() == default
