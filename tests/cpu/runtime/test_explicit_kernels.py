"""Kernels launched explicitly, without selection: their launches on the (stub) driver, and the errors they raise."""

import pytest

import deep_gemm
from deep_gemm import _C
from deep_gemm.errors import ArgumentError, DeviceError, LaunchError, ShapeError
from tests.fakes import stub_driver, stub_operands
from tests.fakes.grouped_variants import CONTIGUOUS, K_GROUPED, MASKED, WITH_ENDS, make_grouped
from tests.fakes.stub_driver import load_kernel, select
from tests.fakes.stub_operands import make_grouped_variant, make_variant

M, N, K = 40, 256, 512
FP8, BF16 = "m_grouped_fp8_gemm_contiguous", "m_grouped_bf16_gemm_masked"


# Dense kernels.


def launch_mismatched(kernel_fields, operand_fields, sizes=(M, N, K)):
    """Launch operands of one variant on a kernel of another."""

    def make(fields):
        rest = {name: value for name, value in fields.items() if name not in ("op", "m", "n", "k")}
        return _C.Problem(
            fields.get("op", "fp8_gemm"), fields.get("m", 1), fields.get("n", 1), fields.get("k", 1), **rest
        )

    problem = make(kernel_fields)
    config = _C.Config(64, 64, 4, block_k=128 if problem.op == "fp8_gemm" else 64)
    positional, options = make_variant(make(operand_fields), *sizes)
    load_kernel(config, problem=problem).launch(*positional, **options)


MISMATCHES = {
    "recipe": ({}, {"recipe": "1d1d"}, ShapeError, "scale_b.shape"),
    "scales": (
        {},
        {"scale_layout": "any"},
        ArgumentError,
        "scale_layout = any: this kernel was made for mn_major; pass such operands",
    ),
    "fp32": ({}, {"d_dtype": "fp32"}, ArgumentError, "d_dtype = fp32: this kernel was made for bf16"),
    "bf16": ({"d_dtype": "fp32"}, {}, ArgumentError, "d_dtype = bf16: this kernel was made for fp32"),
    "c": ({}, {"c_mode": "general"}, ArgumentError, "c_mode = general: this kernel was made for none"),
    "no c": ({"c_mode": "general"}, {}, ArgumentError, "c_mode = none: this kernel was made for general"),
    "accumulate": (
        {"c_mode": "accumulate", "d_dtype": "fp32"},
        {"c_mode": "general", "d_dtype": "fp32"},
        ArgumentError,
        "c_mode = general",
    ),
    "heads": ({}, {"c_mode": "head_split"}, ArgumentError, "c_mode = head_split"),
    "major": (
        {"op": "bf16_gemm"},
        {"op": "bf16_gemm", "b_major": "mn"},
        ArgumentError,
        "b_major = mn: this kernel was made for k",
    ),
    "other major": (
        {"op": "bf16_gemm", "a_major": "mn"},
        {"op": "bf16_gemm"},
        ArgumentError,
        "a_major = k: this kernel was made for mn",
    ),
    "no scales": ({}, {"op": "bf16_gemm"}, ArgumentError, "scale_a, scale_b: an FP8 kernel takes both"),
    "too many scales": ({"op": "bf16_gemm"}, {}, ArgumentError, "scale_a, scale_b: .*a BF16 kernel neither"),
    "size": ({"compiled_dims": "nk", "n": N, "k": 640}, {}, ArgumentError, "k = 512: this kernel is compiled for 640"),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_operands_that_a_kernel_was_not_made_for(driver, name):
    kernel_fields, operand_fields, error, message = MISMATCHES[name]
    with pytest.raises(error, match=message):
        driver.call(launch_mismatched, kernel_fields, operand_fields)


MATCHES = {
    "any scales": ({"scale_layout": "any"}, {}),
    "any c": ({"c_mode": "general", "d_dtype": "fp32"}, {"c_mode": "accumulate", "d_dtype": "fp32"}),
    "sizes": ({"compiled_dims": "nk", "n": N, "k": K}, {}),
    "one row": ({"op": "bf16_gemm", "b_major": "mn"}, {"op": "bf16_gemm", "b_major": "mn"}),
}


@pytest.mark.parametrize("name", MATCHES)
def test_operands_that_a_kernel_takes_as_well(driver, name):
    _, events = driver.call(launch_mismatched, *MATCHES[name])
    assert len(select(events, "LaunchKernelEx")) == 1


def describe_kernel():
    kernel = load_kernel(
        _C.Config(64, 64, 4), problem=_C.Problem("fp8_gemm", 5, 6, 7, num_sms=60, compiled_dims="n", recipe="per_row")
    )
    return kernel.problem.as_dict()


def test_a_kernel_knows_what_it_was_made_for(driver):
    assert (
        driver.call(describe_kernel)[0]
        == _C.Problem("fp8_gemm", 1, 6, 1, compiled_dims="n", recipe="per_row").as_dict()
    )


# Grouped kernels.


def launch_changed(problem, config, changes, sizes=(256, 256, 512, 2), alignment=128):
    """Launch operands of a problem's variant with `changes` to the arguments."""
    positional, options = make_grouped_variant(problem, *sizes)
    deep_gemm.set_mk_alignment_for_contiguous_layout(alignment)
    try:
        load_kernel(config, problem=problem).launch(*positional, **(options | changes))
    finally:
        deep_gemm.set_mk_alignment_for_contiguous_layout(128)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"groups": None}, "groups: a kernel of groups that an operand bounds takes m_indices, masked_m or ks_tensor"),
        ({"alpha": 2.0}, "alpha, beta, head_splits: a grouped kernel takes none"),
        ({"beta": 0.0}, "alpha, beta, head_splits"),
        ({"head_splits": (8, 0, 8)}, "alpha, beta, head_splits"),
        ({"groups": 3}, "groups = an object of type int: must be a torch.Tensor"),
    ],
)
def test_arguments_of_an_explicit_kernel(driver, changes, message):
    with pytest.raises(ArgumentError, match=message):
        driver.call(launch_changed, make_grouped(FP8, 1, 1, 1, 1), _C.Config(64, 64, 4), changes)


def launch_dense_with_groups():
    groups = stub_operands.view(stub_operands.GROUPS, (64,), (1,), "int32")
    load_kernel(_C.Config(64, 64, 4)).launch(*stub_driver.make_operands(64, 128, 128), groups=groups)


def test_a_dense_kernel_takes_no_groups(driver):
    with pytest.raises(ArgumentError, match="ks_tensor, others none"):
        driver.call(launch_dense_with_groups)


def test_an_explicit_kernel_must_fit_the_alignment(driver):
    problem, config = make_grouped(FP8, 1, 1, 1, 1), _C.Config(128, 64, 4)
    with pytest.raises(
        ArgumentError,
        match=(r"block_m = 128 rows do not divide get_mk_alignment_for_contiguous_layout\(\) = 64; set a mul"),
    ):
        driver.call(launch_changed, problem, config, {}, (256, 256, 512, 2), 64)
    _, events = driver.call(launch_changed, problem, config, {}, (256, 256, 512, 2), 384)
    assert len(select(events, "LaunchKernelEx")) == 1


TOKENS = {"block_n": 64, "swap_ab": 1}


def launch_two_tiles(alignment, first, second):
    """Launch a kernel of two tiles of groups with ends that was loaded for an alignment of 384."""
    problem = _C.Problem(WITH_ENDS[FP8], 1536, 512, 1024, num_groups=4, alignment=384)
    positional, options = make_grouped_variant(problem, 1536, 512, 1024, 4)
    options["groups"] = stub_operands.view(stub_operands.GROUPS, (4,), (1,), "int32")
    deep_gemm.set_mk_alignment_for_contiguous_layout(alignment)
    try:
        tiles = _C.Config(**first), 0, _C.Config(**second)
        _C.Kernel(b"cubin of the stub", f"deep_gemm_{problem.op}", problem, *tiles).launch(*positional, **options)
    finally:
        deep_gemm.set_mk_alignment_for_contiguous_layout(128)


def test_the_second_tile_must_fit_the_alignment_too(driver):
    """Tiles of 24 rows in groups aligned to 128 ran into the next group."""
    plain = {"block_m": 64, "block_n": 128, "num_stages": 4}
    wide, few, least = (TOKENS | {"block_m": m, "num_stages": s} for m, s in ((24, 12), (16, 8), (8, 8)))
    with pytest.raises(ArgumentError, match="24x64x128 .*block_m = 24 rows do not divide"):
        driver.call(launch_two_tiles, 128, plain, wide)
    with pytest.raises(ArgumentError, match="alignment = 16.*rows so few"):
        driver.call(launch_two_tiles, 16, few, least)
    _, events = driver.call(launch_two_tiles, 384, plain, wide)
    assert len(select(events, "LaunchKernelEx")) == 1


def launch_grouped_mismatched(kernel_problem, operand_problem):
    """Launch operands of one variant on a kernel of another."""
    positional, options = make_grouped_variant(operand_problem, 256, 256, 512, 2)
    load_kernel(_C.Config(64, 64, 4, block_k=128 if "fp8" in kernel_problem.op else 64), problem=kernel_problem).launch(
        *positional, **options
    )


K_FP8, K_BF16 = (make_grouped(op, 1, 1, 1, 1) for op in K_GROUPED)
GROUPED_MISMATCHES = {
    "d": (
        make_grouped(FP8, 1, 1, 1, 1),
        make_grouped(FP8, 1, 1, 1, 1, d_dtype="fp32"),
        ArgumentError,
        "d_dtype = fp32: this kernel was made for bf16",
    ),
    "major": (
        make_grouped(CONTIGUOUS[1], 1, 1, 1, 1),
        make_grouped(CONTIGUOUS[1], 1, 1, 1, 1, b_major="mn"),
        ArgumentError,
        "b_major = mn: this kernel was made for k",
    ),
    "scales": (K_FP8, make_grouped(K_GROUPED[0], 1, 1, 1, 1, scale_layout="any"), ArgumentError, "scale_layout = any"),
    "c": (
        K_FP8,
        make_grouped(K_GROUPED[0], 1, 1, 1, 1, c_mode="accumulate"),
        ArgumentError,
        "c_mode = accumulate: this kernel was made for none",
    ),
    "blocks": (
        K_FP8,
        make_grouped(K_GROUPED[0], 1, 1, 1, 1, group_layout="blocks"),
        ShapeError,
        r"a.ndim = 1: must be a matrix \[m, sum_k\]",
    ),
    "joint": (
        make_grouped(K_GROUPED[0], 1, 1, 1, 1, group_layout="blocks"),
        K_FP8,
        ShapeError,
        r"a.ndim = 2: must be \[m \* sum_k\]",
    ),
    "masked": (
        make_grouped(MASKED[0], 1, 1, 1, 1),
        make_grouped(FP8, 1, 1, 1, 1),
        ShapeError,
        r"a.ndim = 2: must be \[num_groups, max_m, k\]",
    ),
    "size": (
        make_grouped(FP8, 1, 640, 1, 1, compiled_dims="n"),
        make_grouped(FP8, 1, 1, 1, 1),
        ArgumentError,
        "n = 256: this kernel is compiled for 640",
    ),
}


@pytest.mark.parametrize("name", GROUPED_MISMATCHES)
def test_grouped_operands_that_a_kernel_was_not_made_for(driver, name):
    kernel_problem, operand_problem, error, message = GROUPED_MISMATCHES[name]
    with pytest.raises(error, match=message):
        driver.call(launch_grouped_mismatched, kernel_problem, operand_problem)


def test_grouped_operands_that_a_kernel_takes_as_well(driver):
    for fields, given in (({"scale_layout": "any"}, {}), ({"c_mode": "general"}, {"c_mode": "accumulate"})):
        problems = [make_grouped(K_GROUPED[0], 1, 1, 1, 1, **each) for each in (fields, given)]
        _, events = driver.call(launch_grouped_mismatched, *problems)
        assert len(select(events, "LaunchKernelEx")) == 1


def launch_on_another_device():
    positional, options = make_grouped_variant(make_grouped(FP8, 1, 1, 1, 1), 128, 128, 128, 1, device=2)
    load_kernel(_C.Config(64, 64, 4), problem=make_grouped(FP8, 1, 1, 1, 1)).launch(*positional, **options)


def test_a_kernel_of_another_device(driver):
    with pytest.raises(DeviceError, match="loaded on cuda:0"):
        driver.call(launch_on_another_device, devices=4)


def test_a_launch_that_fails_says_what_and_why(driver):
    with pytest.raises(
        LaunchError,
        match="cuLaunchKernelEx for m = 256, n = 256, k = 512 with 64x64x128 s4.*FAKE_ERROR_700.*restart the process",
    ):
        driver.call(launch_changed_failing, launch_error=700)


def launch_changed_failing():
    launch_changed(make_grouped(FP8, 1, 1, 1, 1), _C.Config(64, 64, 4), {})
