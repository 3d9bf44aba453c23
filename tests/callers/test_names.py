"""Every name and keyword that callers take is here, or says that it is SM100 only."""

import functools
import importlib
import inspect

import pytest

import deep_gemm
from deep_gemm import ops
from tests.callers.names import NAMES


def find(path: str):
    """Return what is at `path` below deep_gemm, as attributes or modules, or None."""
    try:
        return functools.reduce(getattr, path.split("."), deep_gemm)
    except AttributeError:
        return None


def accepts(path: str, keyword: str) -> bool:
    """Return whether the function takes `keyword`, which may be the second name of a parameter."""
    aliases = {one.alias for op in ops.OPS if path in (op.name, *op.other_names) for one in op.parameters}
    return keyword in inspect.signature(find(path)).parameters or keyword in aliases


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.path)
def test_a_name_is_here_with_its_keywords(name):
    assert find(name.path) is not None
    assert not {keyword for keyword in name.keywords if not accepts(name.path, keyword)}


@pytest.mark.parametrize("name", [name for name in NAMES if name.is_refused], ids=lambda name: name.path)
def test_what_is_for_sm100_says_so(name):
    for error in (RuntimeError, deep_gemm.errors.DeviceError):
        with pytest.raises(error, match=f"{name.path}.*SM100 only"):
            find(name.path)(1, 2, x=3)


def test_kernels_for_a100_say_so():
    with pytest.raises(RuntimeError, match="a_fused_m_grouped_bf16_gemm_nt_contiguous_tl.*for A100"):
        importlib.import_module("deep_gemm.legacy").a_fused_m_grouped_bf16_gemm_nt_contiguous_tl()
    assert not hasattr(deep_gemm.legacy, "something")


def test_typed_errors_are_runtime_errors_and_the_built_ins_they_resemble():
    errors = deep_gemm.errors
    resembled = {
        "ShapeError": ValueError,
        "LayoutError": ValueError,
        "DtypeError": TypeError,
        "ArgumentError": TypeError,
    }
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, Exception) and not issubclass(error, Warning):
            assert issubclass(error, RuntimeError)
    for name, builtin in resembled.items():
        assert issubclass(getattr(errors, name), builtin)
    for caught in (RuntimeError, TypeError):  # raised by the native module
        with pytest.raises(caught, match="num_sms = 'x'"):
            deep_gemm.set_num_sms("x")


@pytest.mark.parametrize("value", [64, [64], (64, 128)])
def test_switches_without_effect_are_taken(value):
    deep_gemm.set_block_size_multiple_of(value)
    deep_gemm.set_ignore_compile_dims(True)
    for wrong in (0, [1, 2, 3], ["x"]):
        with pytest.raises(RuntimeError, match="value = "):
            deep_gemm.set_block_size_multiple_of(wrong)
    with pytest.raises(RuntimeError, match="is_enabled = 1"):
        deep_gemm.set_ignore_compile_dims(1)


def test_determinism_is_batch_invariance():
    before = deep_gemm.get_deterministic_algorithms()
    assert before is False and deep_gemm.is_batch_invariant("bf16_gemm")
    deep_gemm.use_deterministic_algorithms(True)
    assert deep_gemm.get_deterministic_algorithms() is deep_gemm.is_batch_invariant() is True
    deep_gemm.use_deterministic_algorithms(before)
    assert deep_gemm.get_deterministic_algorithms() is before and deep_gemm.is_batch_invariant() is None
