"""Defects that are planted into what chooses, compiles and warms up kernels of two tiles; see run.py."""

from tests.mutation.defects import Defects

_TESTS = "tests/cpu/runtime/test_second_tile.py tests/cpu/jit/test_two_tiles.py"

TILE_DEFECTS: Defects = {
    ("deep_gemm/plan.py", _TESTS): [
        (
            "    key = (config, second, _C.kernel_identity(problem))",
            "    key = (config, None, _C.kernel_identity(problem))",
        ),
        ("others = [choice.config] if second else []", "others = []"),
        ("            remember_failure(problem, choice.config, second, error)", "            pass"),
        ("        _failed[(config, second, ", "        _failed[(config, None, "),
        ("        second = None\n", ""),
    ],
    ("deep_gemm/selection.py", _TESTS): [
        ('    if not environment.is_enabled("DG_SECOND_TILE", default=True):', "    if False:")
    ],
    ("deep_gemm/selector.py", "tests/cpu/selector/test_banned_tiles.py"): [
        (" and identity not in map(_C.Problem.from_json, variants)", ""),
        ("configs[index] == config and identity", "identity"),
    ],
    ("deep_gemm/jit/compile_pool.py", _TESTS): [
        ('second.to_json() if second else "")', '"")'),
        ("generator.generate_source(problem, config, second)", "generator.generate_source(problem, config)"),
    ],
    ("deep_gemm/jit/kernel_set.py", _TESTS): [
        ("groups = min(problem.num_groups, _C.MOST_GROUPS_OF_TWO_TILES + 1)", "groups = 0"),
        ("                plan.forget_failure(*job.parse())", "                pass"),
        ('alone = [job._replace(second="") for job in failed if job.second]', "alone = []"),
    ],
}
