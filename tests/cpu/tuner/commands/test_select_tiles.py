"""`select` for few masked groups, whose kernel has two tiles."""

import json

from deep_gemm import _C, selection
from tuner import cli


def run(capsys, *arguments):
    code = cli.run(["select", *map(str, arguments)])
    return code, capsys.readouterr().out


def test_it_shows_both_tiles_of_a_kernel_for_few_groups(capsys):
    options = ("--op", "m_grouped_bf16_gemm_masked", "--num-groups", "1", "--expected-m", "512", "--device", "h200")
    found = json.loads(run(capsys, 4096, 4096, 4096, *options, "--json")[1])
    problem, device = _C.Problem(**found["problem"]), _C.Device.known("h200")
    second = selection.find_second_tile(problem, _C.Config(**found["config"]), device)
    assert found["second"] == {"config": second.as_dict(), "name": str(second)}
    assert f"\n  or {second}, where masked_m asks for it\n" in run(capsys, 4096, 4096, 4096, *options)[1]
    many = (*options[:3], "32", *options[4:])
    assert json.loads(run(capsys, 4096, 4096, 4096, *many, "--json")[1])["second"] is None
