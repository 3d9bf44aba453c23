"""The native module against objects that are not what they seem, text that is cut, and sizes near 2^31."""

import subprocess
import sys

import pytest
import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.errors import ArgumentError, DeepGemmError, ProblemError

DEVICE = _C.Device.known("h200")
BOUND = sorted(name for name, value in vars(_C).items() if isinstance(value, type))

#: Uses every method and property of instances that __new__ made alone; prints the class before, and after it what did
#: not end in an error.
USE_UNMADE = """
import copy, pickle, sys
from deep_gemm import _C
def use(action, name):
    try:
        action()
    except Exception:
        return
    print("    " + name)
def use_all(bound, made):
    names = [name for name in dir(bound) if not hasattr(object, name)]
    for name in names:
        value = vars(bound)[name]
        if isinstance(value, staticmethod):
            continue
        if isinstance(value, property):
            use(lambda: getattr(made, name), name)
        elif name not in ("__init__", "__new__", "__module__", "__setstate__"):
            for extra in ((), (made,), (1,), ("fp8_gemm",)):
                use(lambda: getattr(made, name)(*extra), name)
    for action in (repr, pickle.dumps, copy.copy):
        if action.__name__ == "repr" and "__repr__" not in vars(bound):
            continue
        use(lambda: action(made), action.__name__)
    for function in (_C.get_candidates, _C.is_legal, _C.rows_per_group, _C.kernel_identity, _C.get_config_features):
        for extra in ((), (made,), (made, made)):
            use(lambda: function(made, *extra), function.__name__)
for name in sys.argv[1:]:
    print(name, flush=True)
    bound = getattr(_C, name)
    use_all(bound, bound.__new__(bound))
    derived = type("Derived", (bound,), {})
    use_all(bound, derived.__new__(derived))
"""


def test_all_bound_classes_are_here():
    assert BOUND == ["Choice", "Config", "Device", "Field", "Kernel", "OpKind", "Problem", "Selector", "TensorView"]


def test_an_instance_without_a_value_is_an_error_and_no_crash():
    ran = subprocess.run([sys.executable, "-c", USE_UNMADE, *BOUND], capture_output=True, text=True)
    assert ran.returncode == 0, f"{ran.stdout[-500:]}{ran.stderr[-500:]}"
    assert ran.stdout.split("\n") == [*BOUND, ""]


def test_what_an_instance_without_a_value_says():
    with pytest.raises(ArgumentError, match="Problem without a value: __new__ alone makes no usable one"):
        str(_C.Problem.__new__(_C.Problem))


PROBLEM, CONFIG = _C.Problem("fp8_gemm", 64, 2112, 7168), _C.Config(64, 96, 128)
#: Functions that run what they are given, classes that nobody makes, and settings, which would stay.
LEFT_OUT = ("time_dispatch_hits", "Field", "OpKind")
CALLABLE = sorted(
    name for name, value in vars(_C).items() if callable(value) and name not in LEFT_OUT and not name.startswith("set_")
)
WRONG = [None, 7, -1, 1 << 70, 0.5, "x", "\ud800", b"x", object(), [None], {"x": 1}, (1, 2), torch.ones(3), PROBLEM]


def list_wrong_calls() -> list[tuple]:
    """Return arguments of which at least one is wrong for any function, by position."""
    right, calls = (PROBLEM, CONFIG, DEVICE), [()]
    for value in WRONG:
        calls += [(value,) * size for size in range(1, 5)]
        calls += [(*right[:place], value, *right[place + 1 : size]) for size in range(4) for place in range(size)]
    return calls


@pytest.mark.parametrize("name", CALLABLE)
def test_what_no_caster_takes_is_a_typed_error(name):
    untyped = []
    for arguments in list_wrong_calls():
        try:
            getattr(_C, name)(*arguments)
        except DeepGemmError:
            continue
        except Exception as error:
            untyped.append(f"{arguments}: {type(error).__name__}: {error}"[:200])
    assert not untyped, "\n".join(untyped[:5])


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: deep_gemm.get_candidates(1, 2),
            r"^get_candidates\(1, 2\): must be called as get_candidates\(problem: Problem, device: Device\); pass ",
        ),
        (
            lambda: deep_gemm.get_candidates(PROBLEM, device="h200"),
            r"\(Problem\('fp8_gemm', .*\), device='h200'\): must",
        ),
        (lambda: deep_gemm.get_candidates(), r"^get_candidates\(\): must be called as"),
        (lambda: PROBLEM.as_dict(1, 2), r"^Problem.as_dict\(1, 2\): .* Problem.as_dict\(with_defaults: bool = True\);"),
        (lambda: _C.Device.known(5), r"^Device.known\(5\): must be called as Device.known\(sku_or_short_name: str\);"),
        (lambda: _C.Device("x"), r"^Device\('x'\): must be called as Device\(name: str, sm_count: object, \*, sku"),
        (lambda: _C.is_batch_invariant(3), r"as is_batch_invariant\(\) or is_batch_invariant\(op: str\); pass"),
        (lambda: _C.Problem(), "lacks the argument 'op'; pass it"),
        (lambda: _C.Problem(5, 1, 1, 1), "op = 5: must be text; pass a str"),
        (
            lambda: _C.estimate_time_us(PROBLEM, _C.Config(64, 96, 4), DEVICE, {"launch_us": "x"}),
            "launch_us = 'x': must be a number; pass a float",
        ),
    ],
)
def test_what_such_an_error_says(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_a_message_shows_some_of_many_arguments():
    with pytest.raises(ArgumentError, match=r"^get_candidates\(0, 0, .*, 0, \.\.\.\): must be called as") as caught:
        _C.get_candidates(*[0] * 100_000)
    assert len(str(caught.value)) < 2000


def test_no_class_is_asked_what_it_lacks():
    """Each argument of each call is looked at; an exception for each took ten times as long as all the rest."""
    asked = []

    class Asked(type):
        def __getattr__(cls, name):
            asked.append(name)
            raise KeyboardInterrupt

    with pytest.raises(ArgumentError, match="must be called as"):
        _C.is_legal(PROBLEM, CONFIG, Asked("Odd", (), {})())
    assert "untyped_storage" not in asked


def test_objects_of_other_types_are_unequal():
    assert PROBLEM != 3 and CONFIG != PROBLEM and torch.ones(1) != DEVICE and _C.Problem(**PROBLEM.as_dict()) == PROBLEM


class Lying(tuple):
    """A tuple of one that says that it holds as many as are asked for."""

    def __len__(self):
        return 2 if isinstance(self[0], torch.Tensor) else 3


class LyingList(list):
    def __len__(self):
        return 2

    def __iter__(self):
        return iter([])


def make_operands():
    x = torch.randn(128, 128)
    a, b = deep_gemm.per_token_cast_to_fp8(x, False), deep_gemm.per_block_cast_to_fp8(x, False)
    return a, b, torch.full((128, 128), 7.0, dtype=torch.bfloat16)


@pytest.mark.parametrize("pair", [lambda a: Lying((a[0],)), lambda a: LyingList([a[0]]), lambda a: LyingList()])
def test_pairs_that_lie_about_their_length(pair):
    a, b, d = make_operands()
    with pytest.raises(ArgumentError, match="pairs"):
        deep_gemm.fp8_gemm_nt(pair(a), b, d)
    with pytest.raises(ArgumentError, match="pairs"):
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, pair(b), d, torch.zeros(128, dtype=torch.int32))
    for recipe in (Lying((1,)), LyingList([1])):
        with pytest.raises(ArgumentError, match="recipe"):
            deep_gemm.fp8_gemm_nt(a, b, d, recipe=recipe)
        with pytest.raises(ArgumentError, match="head_splits"):
            deep_gemm.fp8_gemm_nt_skip_head_mid(a, b, d, recipe)
    assert (d == 7).all()


def free(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("place", ["a", "b", "d", "c"])
@pytest.mark.parametrize("offset", [0, 64])
def test_a_tensor_without_memory_is_refused(place, offset):
    operands = {name: torch.ones(128 + offset, 128, dtype=torch.bfloat16)[offset:] for name in "abd"}
    operands["c"] = operands["d"]
    whole = torch.ones(128 + offset, 128, dtype=torch.bfloat16)
    operands[place] = whole[offset:]
    free(whole)
    with pytest.raises(ArgumentError, match=f"^{place}: a tensor without memory"):
        deep_gemm.bf16_gemm_nt(operands["a"], operands["b"], operands["d"], c=operands["c"])
    assert place == "d" or (operands["d"] == 1).all()


def nest(value: object, depth: int) -> object:
    """Return lists in lists around a value."""
    return nest([value], depth - 1) if depth else value


HOLDERS = (
    lambda x: x,
    lambda x: (x,),
    lambda x: [1, x],
    lambda x: {"x": x},
    lambda x: {x: 1},
    lambda x: {x},
    lambda x: nest(x, 3),
    lambda x: nest(x, 9),
)


@pytest.mark.parametrize("hold", HOLDERS)
@pytest.mark.parametrize("name", ["alpha", "recipe", "stream", "compiled_dims", "c"])
def test_no_message_prints_numbers_that_are_gone(name, hold):
    a, b, d = make_operands()
    with pytest.raises(DeepGemmError, match=name):
        deep_gemm.fp8_gemm_nt(a, b, d, **{name: hold(free(torch.ones(3)))})
    with pytest.raises(ArgumentError, match="gran_k"):
        deep_gemm.per_token_cast_to_fp8(torch.ones(4, 128), False, hold(free(torch.ones(3))))
    with pytest.raises(ArgumentError, match="device = an object of type"):
        deep_gemm.get_best_config(_C.Problem("fp8_gemm", 1, 128, 128), hold(free(torch.ones(3))))
    with pytest.raises(ArgumentError, match=r"^get_candidates\(an object of type \w+, Device"):
        deep_gemm.get_candidates(hold(free(torch.ones(3))), DEVICE)
    assert (d == 7).all()


def test_scales_without_memory_are_refused():
    a, b, d = make_operands()
    with pytest.raises(ArgumentError, match="^scale_b: a tensor without memory"):
        deep_gemm.fp8_gemm_nt(a, (b[0], free(b[1])), d)
    rows = free(torch.zeros(128, dtype=torch.int32))
    with pytest.raises(ArgumentError, match="^m_indices: a tensor without memory"):
        deep_gemm.m_grouped_bf16_gemm_nt_contiguous(d, d.clone().view(1, 128, 128), d.clone(), rows)


def test_a_tensor_without_elements_needs_no_memory():
    x = torch.empty(0, 128, dtype=torch.bfloat16)
    deep_gemm.bf16_gemm_nt(x, torch.ones(128, 128, dtype=torch.bfloat16), torch.empty(0, 128, dtype=torch.bfloat16))


TEXTS = ["x" + "é" * 60, "日" * 200, "y" * 500, "\x1b[2Jz", "\x9bz", "a\x7fb", "\U0001f600" * 40]


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_callers_is_cut_between_characters_and_holds_no_escapes(text):
    for make in (
        lambda: _C.Problem(text, 1, 1, 1),
        lambda: _C.Problem("fp8_gemm", 128, 128, 128, compiled_dims=text),
        lambda: _C.Problem("fp8_gemm", 128, 128, 128, d_dtype=text),
        lambda: _C.Device.known(text),
        lambda: _C.Choice(_C.Config(128, 128, 128), text, ""),
        lambda: _C.Problem("fp8_gemm", 128, 128, 128, **{text: 1}),
    ):
        with pytest.raises((DeepGemmError, TypeError)) as caught:
            make()
        message = str(caught.value)
        assert message.isprintable() and message.count(text[1:2] * 80) == 0


def test_a_lone_surrogate_is_no_expression():
    x = torch.ones(2, 2, 2, dtype=torch.bfloat16)
    with pytest.raises(ArgumentError, match="expr"):
        deep_gemm.einsum("\ud800", x, x, x)


def test_a_repr_that_is_no_text():
    class Surrogate:
        def __repr__(self):
            return "\ud800"

    with pytest.raises(ProblemError, match="m = <unprintable>"):
        _C.Problem("fp8_gemm", Surrogate(), 1, 1)


def test_small_tiles_are_left_out_where_their_number_needs_more_than_64_bits():
    """32,768 groups of 2^30 x 2^30 have 2^64 tiles of 64 x 32."""
    problem = _C.Problem("batched_bf16_gemm", 1 << 30, 1 << 30, 7168, num_groups=1 << 15)
    candidates = _C.get_candidates(problem, DEVICE)
    assert candidates and min(config.block_m * config.block_n for config in candidates) >= 128 * 64
    half = _C.Problem("batched_bf16_gemm", 1 << 29, 1 << 30, 7168, num_groups=1 << 15)
    for config in candidates:
        assert _C.estimate_time_us(problem, config, DEVICE) > _C.estimate_time_us(half, config, DEVICE) > 0


@pytest.mark.parametrize("op", [kind.name for kind in _C.OP_KINDS if kind.is_batched or kind.has_room])
def test_the_largest_problem_has_a_time(op):
    problem = _C.Problem(op, (1 << 31) - 1, (1 << 31) - 1, 1 << 20, num_groups=65535)
    config = _C.get_analytic_config(problem, DEVICE)
    assert _C.is_legal(problem, config, DEVICE) and 0 < _C.estimate_time_us(problem, config, DEVICE) < float("inf")
    space = _C.get_default_space(problem, DEVICE)
    smallest = min(space, key=lambda each: each.block_m * each.block_n)  # whose number of tiles needs more than 64 bits
    assert _C.estimate_time_us(problem, smallest, DEVICE) >= _C.estimate_time_us(problem, config, DEVICE)
    waves = _C.get_config_features(problem, DEVICE, [smallest, config])[:, _C.config_feature_names().index("waves")]
    assert waves.min() > 1e9
