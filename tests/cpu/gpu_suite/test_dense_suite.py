"""The GPU suite on the CPU: what it covers, that right kernels pass and wrong ones do not, and its calls of the public
ops.
"""

import random

import pytest
import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.errors import ProblemError
from tests.fakes.gpu_world import FakeKernel, FakeWorld, copy_storage
from tests.fakes.variants import all_fields
from tests.gpu import (
    calls,
    configs,
    faults,
    kernels,
    memory,
    operands,
    repeats,
    sanitizer,
    semantics,
    semantics_layouts,
    watched,
)
from tests.gpu.configs import COMMON_SHAPES, derive_shapes, list_runs, run_config
from tests.gpu.jobs import SECTIONS
from tests.gpu.public_op import OP_VARIANTS
from tests.gpu.variants import BF16, MAIN, Variant, choose_configs, get_space, list_variants
from tests.gpu.world import compare, describe, lay_out_scale

H200 = _C.Device.known("h200")
VARIANTS = list_variants()
SMALL = (operands.Shape(1, 24, 144), operands.Shape(37, 130, 272))


# What is covered.


def test_variants_are_all_that_a_problem_can_be():
    """Every combination of fields is a variant or is refused by Problem itself."""
    legal = set()
    for op, fields in all_fields():
        try:
            Variant(op, **fields).problem()
        except ProblemError:
            continue
        legal.add(Variant(op, **fields))
    assert legal == set(VARIANTS)


def test_main_variants_are_covered_whole_and_all_others_by_some():
    for variant in VARIANTS:
        space, chosen = get_space(variant, H200), choose_configs(variant, H200)
        assert len(chosen) == len(space) if variant in MAIN else len(chosen) >= min(4, len(space)), variant
        assert all(_C.is_legal(variant.problem(), config, H200) for config in chosen)


@pytest.mark.parametrize("variant", MAIN, ids=str)
def test_shapes_of_a_config_surround_its_tile_ring_and_split(variant):
    for index, config in enumerate(get_space(variant, H200)):
        shapes = derive_shapes(config, index)
        assert {config.block_m - 1, config.block_m, config.block_m + 1, 1} <= {shape.m for shape in shapes}
        assert {config.block_n - 1, config.block_n, config.block_n + 1, 1} <= {shape.n for shape in shapes}
        depths, split = {shape.k // config.block_k for shape in shapes}, config.split_k
        assert {count * split for count in (config.num_stages - 1, config.num_stages, config.num_stages + 1)} <= depths
        assert split == 1 or {split - 1, split, split * config.num_stages + 1} <= depths
        assert {num_sms for *_, num_sms in list_runs(variant, config, index)} == (
            {0} if split > 1 else {0, configs.FEW_SMS}
        )


def test_tails_of_n_take_every_value():
    tails = {
        shape.n % 8
        for variant in MAIN
        for index, config in enumerate(get_space(variant, H200))
        for shape in derive_shapes(config, index)
    }
    assert tails == set(range(8))


def test_sanitizer_watches_every_variant_and_every_path_of_the_main_ones():
    pairs = sanitizer.choose_pairs(H200)
    assert {variant for variant, _ in pairs} == set(VARIANTS) and len(pairs) < 250
    for variant in MAIN:
        chosen, space = [config for owner, config in pairs if owner == variant], get_space(variant, H200)
        for of in (
            lambda c: (c.cluster_m, c.cluster_n),
            lambda c: c.split_k,
            lambda c: c.swap_ab,
            lambda c: c.block_n if c.swap_ab else c.block_m,
        ):
            assert {of(config) for config in chosen} == {of(config) for config in space}
        problem = variant.problem()
        assert {_C.is_staged(problem, config) for config in chosen} == {
            _C.is_staged(problem, config) for config in space
        }


def test_kernels_are_listed_once_for_what_the_sections_need(world):
    listed = kernels.list_kernels(H200, list(SECTIONS), ("nvrtc", "nvcc"), 4, True)
    assert len(listed) == len(set(listed)) <= 3700
    assert {job.compiler for job in listed} == {"nvrtc", "nvcc"}
    assert not any(job.compiler == "nvcc" for job in kernels.list_kernels(H200, ["calls"], ("nvrtc",), 4, False))


# Right and wrong kernels.


def run_small(world, monkeypatch, variant, config):
    """Run one config of a variant on small shapes."""
    monkeypatch.setattr(configs, "derive_shapes", lambda config, index=0: list(SMALL))
    monkeypatch.setattr(configs, "COMMON_SHAPES", SMALL)
    monkeypatch.setattr(configs, "CROWDED_TILES", (2,))
    return run_config(world, variant, config, 1)


@pytest.mark.parametrize("variant", MAIN, ids=str)
def test_grids_of_several_ctas_an_sm_are_run(variant):
    """Of every tile that can have them: in one round and in two."""
    grids: dict = {}
    for config in get_space(variant, H200):
        for shape in configs.derive_crowded(variant, config):
            problem = _C.Problem(**(variant.problem().as_dict() | shape._asdict()))
            geometry = _C.launch_geometry(problem, config, sm_count=132)
            rounds = geometry["num_n_tiles"] / geometry["num_ctas"]
            ctas = -(-geometry["num_ctas"] // 132)
            grids.setdefault(_C.blocks_per_sm(problem, config), set()).add((ctas, rounds > 1))
    assert {2, 3} <= set(grids)
    for fitting, found in grids.items():
        assert found >= {(ctas, is_longer) for ctas in range(2, fitting + 1) for is_longer in (False, True)}


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_right_kernels_pass(world, monkeypatch, variant):
    for config in choose_configs(variant, H200, 64)[:2]:
        cases, failures = run_small(world, monkeypatch, variant, config)
        assert cases > 4 and failures == []


def spoil_element(kernel, d):
    d[-1, -1] *= 1.02


def spoil_outside(kernel, d):
    torch.as_strided(d, (1,), (1,), d.storage_offset() + d.shape[1]).zero_()


def spoil_late(kernel, d):
    if kernel.count == 4:
        d[0, 0] = d[0, 0] * (1.0 + 2.0**-7)


def leave_unwritten(kernel, d):
    d[-1] = float("nan")


@pytest.mark.parametrize("fault", [spoil_element, spoil_outside, spoil_late, leave_unwritten])
@pytest.mark.parametrize(
    "variant", [*MAIN, Variant(c_mode="head_split"), Variant(BF16, c_mode="general", b_major="mn")], ids=str
)
def test_wrong_kernels_do_not_pass(monkeypatch, variant, fault):
    config = choose_configs(variant, H200)[0]
    _, failures = run_small(FakeWorld(fault), monkeypatch, variant, config)
    assert failures


@pytest.mark.parametrize("variant", [*MAIN, Variant(c_mode="head_split")], ids=str)
def test_nvcc_must_give_the_bits_of_nvrtc(monkeypatch, variant):
    monkeypatch.setattr(configs, "COMMON_SHAPES", SMALL)
    fresh = FakeWorld()
    config = choose_configs(variant, H200)[0]
    assert configs.run_nvcc(fresh, variant, config) == (len(SMALL), [])
    fresh.kernel(variant, config, "nvcc").fault = spoil_element
    assert len(configs.run_nvcc(fresh, variant, config)[1]) == len(SMALL)


@pytest.mark.parametrize("variant", [*MAIN, Variant(recipe="per_row"), Variant(BF16, c_mode="general")], ids=str)
def test_repeats_count_what_differs(monkeypatch, variant):
    monkeypatch.setattr(repeats, "LARGE_SHAPE", SMALL[1])
    fresh = FakeWorld()
    config = choose_configs(variant, H200)[0]
    repeater, kernel = repeats.make_repeater(fresh, variant, config, SMALL[1]), fresh.kernel(variant, config)
    for fault, count in ((None, 0), (spoil_element, 1), (spoil_outside, 2)):
        kernel.fault = fault
        repeater.count(0)
        assert int(repeater.unlike[0]) == count
    kernel.fault = None
    assert repeats.run_large(fresh, variant, config) == (repeats.LARGE_REPEATS + 1, [])
    kernel.fault = spoil_element
    assert [text.partition(": ")[2] for text in repeats.run_large(fresh, variant, config)[1]] == [
        "1 elements outside their bound"
    ]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_sanitizers_copies_give_the_same_result(monkeypatch, variant):
    monkeypatch.setattr(watched, "copy_to_gpu", copy_storage)
    config = choose_configs(variant, H200)[0]
    for index, shape in enumerate(SMALL):
        case = operands.make_case(shape, "cpu", variant, integers=index == 1)
        host = operands.make_output(case)
        sanitizer._launch(FakeKernel(variant.problem(), config), case, host, index, 0)
        assert not int(operands.count_wrong(case, host.values)) and not int(host.num_dirty())


def test_split_configs_are_compared_with_their_own_first_run(monkeypatch):
    """Another order of adding is right, but not from run to run."""

    def flip(kernel, d):
        if kernel.config.split_k > 1 and kernel.count % 2:
            d[0, 0] = torch.nextafter(d[0, 0], torch.tensor(100.0, dtype=d.dtype))

    variant = Variant(BF16, d_dtype="fp32")
    split = next(config for config in get_space(variant, H200) if config.split_k > 1)
    _, failures = run_small(FakeWorld(flip), monkeypatch, variant, split)
    normal = [failure for failure in failures if "normal" in failure]
    assert normal and all(
        "unlike the first config's bits" in failure and "outside" not in failure for failure in normal
    )


def test_comparison_sees_one_wrong_element_and_one_stray_write():
    case = operands.make_case(operands.Shape(70, 130, 200), "cpu")
    output, config = operands.make_output(case), get_space(MAIN[0], H200)[0]
    assert describe(compare(case, config, output).tolist()).startswith("9100 elements outside")
    case.first.clear()
    output.d.copy_(case.reference.float())
    assert describe(compare(case, config, output).tolist()) == ""
    output.d[3, 5] *= 1.02
    output.buffer[7] = 0
    assert compare(case, config, output).tolist()[:3] == [1, 1, 1]


# Operands.


@pytest.mark.parametrize("variant", [variant for variant in OP_VARIANTS if variant.c_mode != "head_split"], ids=str)
def test_integer_cases_are_exact_for_the_reference_op(variant):
    from tests.gpu.public_op import run_op

    case = operands.make_case(operands.Shape(33, 150, 300), "cpu", variant, integers=True)
    output = operands.make_output(case)
    run_op(case, output)
    assert not int(operands.count_wrong(case, output.values)) and not int(output.num_dirty())


@pytest.mark.parametrize("layout", memory.SCALE_LAYOUTS)
def test_scale_layouts_keep_the_values(layout):
    for scale in (torch.rand(5, 3), torch.rand(1, 1), torch.rand(7)):
        assert torch.equal(memory.make_scale_layout(scale, layout), scale)


def test_scales_of_a_class_are_of_it_for_every_size():
    for shape in ((1, 1), (1, 5), (4, 1), (4, 4), (8, 8), (130, 3)):
        scale = torch.rand(shape)
        for index in range(6):
            assert memory.is_mn_major(lay_out_scale(scale, Variant(), index, True))
            assert not memory.is_mn_major(lay_out_scale(scale, Variant(scale_layout="any"), index, True))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16])
@pytest.mark.parametrize("major", ["k", "mn"])
def test_operands_lie_in_nan_at_whole_pitches(dtype, major):
    values = torch.randn(5, 19).to(dtype)
    found = memory.make_operand(values, major, 2)
    assert torch.equal(found.float(), values.float())
    pitch = found.stride(0 if major == "k" else 1) * dtype.itemsize
    assert (
        found.stride(1 if major == "k" else 0) == 1 and pitch % 16 == 0 and pitch > max(values.shape) * dtype.itemsize
    )
    whole = found.as_strided((found.untyped_storage().nbytes() // dtype.itemsize,), (1,), 0)
    assert int(whole.float().isnan().sum()) == whole.numel() - values.numel()


@pytest.mark.parametrize("n", [1, 2, 7, 24, 130, 264])
def test_heads_cover_all_columns(n):
    left, middle, right = operands.choose_heads(n)
    assert min(left, middle) > 0 <= right and n % (left + right) == 0


# The public ops.


@pytest.mark.parametrize("variant", OP_VARIANTS, ids=str)
def test_values_flow_as_the_suite_expects(world, variant):
    for run in semantics.SHAPED:
        assert run(world, variant, operands.Shape(21, 136, 400))[1] == []


@pytest.mark.parametrize("variant", semantics.C_VARIANTS, ids=str)
def test_factors_are_as_the_suite_expects(world, variant):
    assert semantics.run_factors(world, variant, operands.Shape(21, 136, 400))[1] == []


def test_transposed_copies_are_as_the_suite_expects(world):
    assert semantics_layouts.run_copies_on_few_sms(world, Variant(), operands.Shape(21, 136, 400)) == (6, [])
    assert deep_gemm.get_num_sms() == 0


def test_zero_sizes_are_as_the_suite_expects(world):
    for variant in MAIN:
        assert semantics.run_zero_sizes(world, variant)[1] == []


def test_fuzzed_calls_end_right_or_typed(world, monkeypatch):
    monkeypatch.setattr(
        calls, "VARIATIONS", tuple(change for change in calls.VARIATIONS if change is not calls.use_stream)
    )
    assert calls.run_calls(world, 1, 150) == (150, [])


@pytest.mark.parametrize("change", [*calls.VARIATIONS, *faults.FAULTS])
def test_each_change_of_a_call_can_be_judged(world, change):
    if change is calls.use_stream:
        pytest.skip("needs a CUDA stream")
    for index, variant in enumerate(calls.CALL_VARIANTS):
        call = calls.make_call(world, random.Random(index), variant, operands.Shape(9, 40, 144))
        assert calls.run_call(call, change) == ""


def test_a_lenient_op_is_found_out(world, monkeypatch):
    monkeypatch.setattr(calls.Call, "invoke", lambda call: "")
    call = calls.make_call(world, random.Random(0), MAIN[0], operands.Shape(9, 40, 144))
    assert calls.run_call(call, faults.break_rank) == "invalid call was accepted"
    call = calls.make_call(world, random.Random(0), MAIN[0], operands.Shape(9, 40, 144))
    assert "outside their bound" in calls.run_call(call, calls.use_alpha)


def test_common_shapes_are_met_by_every_config():
    for variant in VARIANTS:
        for index, config in enumerate(choose_configs(variant, H200)[:3]):
            assert {shape for shape, *_ in list_runs(variant, config, index)} >= set(COMMON_SHAPES)
