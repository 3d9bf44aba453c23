"""Compiling ahead: one kernel per variant and config, shards that share the work, faults that cost one kernel."""

import os

from deep_gemm import _C
from tuner.search import precompile
from tuner.search.candidates import find_kernels
from tuner.search.precompile import Compiled

PROBLEMS = [_C.Problem("fp8_gemm", m, n, k) for m, n, k in ((64, 2112, 7168), (16, 1280, 8192), (333, 512, 1024))]
DEVICE = _C.Device.known("h200")


def test_kernels_are_compiled_once_for_a_variant():
    few = _C.get_candidates(PROBLEMS[0], DEVICE)[:3]
    row_major = _C.Problem("fp8_gemm", 64, 2112, 7168, scale_layout="any")
    sized = _C.Problem("fp8_gemm", 64, 2112, 7168, compiled_dims="k")
    invariant = _C.Problem("fp8_gemm", 64, 2112, 7168, batch_invariant=True)
    kernels = find_kernels(dict.fromkeys([*PROBLEMS, invariant, row_major, sized], few))
    assert len(kernels) == 3 * len(few) and {problem.k for problem, _ in kernels} == {1, 7168}


def test_shards_compile_from_different_places(monkeypatch):
    seen = []
    monkeypatch.setattr(
        precompile,
        "run_pool",
        lambda order, indices, processes, done, on_done, is_kept: (
            seen.append(order),
            done.update({index: Compiled("ok") for index in indices}),
        ),
    )
    kernels = [("p", "a"), ("p", "b"), ("q", "a"), ("q", "d")]
    ok = Compiled("ok")
    assert precompile.compile_all(kernels, 2, lambda done, total: None, first=2) == {
        "p": {"a": ok, "b": ok},
        "q": {"a": ok, "d": ok},
    }
    assert seen == [kernels[2:] + kernels[:2]]


def test_a_compiling_process_that_dies_costs_its_kernel(monkeypatch):
    def die_at_c(order, indices, processes, done, on_done, is_kept=False):
        done.update(
            {
                index: Compiled("ok")
                for index in indices
                if order[index] != ("p", "c") and (len(indices) == 1 or index < 2)
            }
        )

    monkeypatch.setattr(precompile, "run_pool", die_at_c)
    compiled = precompile.compile_all([("p", name) for name in "abcd"], 2, lambda done, total: None)["p"]
    assert {config: outcome.status for config, outcome in compiled.items()} == {
        "a": "ok",
        "b": "ok",
        "c": "compile_error",
        "d": "ok",
    }


def compile_in_turn(index, problem, config) -> tuple[int, Compiled]:
    """Stand in for a compiler: tell the process, and die at one config."""
    if config == "deadly":
        os._exit(1)
    return index, Compiled("ok", registers=os.getpid())


def test_a_kept_pool_compiles_the_next_batch_until_one_dies(monkeypatch):
    monkeypatch.setattr(precompile, "compile_indexed", compile_in_turn)

    def run(*configs, is_kept=True) -> set[int]:
        found = precompile.compile_all([("p", config) for config in configs], 2, lambda *_: None, 0, is_kept)["p"]
        assert {config: outcome.status == "ok" for config, outcome in found.items()} == {
            config: config != "deadly" for config in configs
        }
        return {outcome.registers for outcome in found.values()}

    try:
        first = run("a", "b", "c")
        assert run("d", "e", "f") & first and len(first) <= 2
        run("g", "deadly")
        assert not run("h", "i") & first
    finally:
        precompile.close_pool()
