"""The kernels whose verdict by racecheck is known: they are what they are said to be, and so is their verdict."""

import re

import pytest

from deep_gemm.fields import OP_KINDS
from deep_gemm.jit.generator import kernel_name
from deep_gemm.jit.plain_kernels import PLAIN_KERNELS, plain_symbol
from tests.fakes import sass
from tests.fakes.compiler import isolate, require_compiler
from tests.fakes.sanitizer_tool import DONE, HAZARD, SUMMED_UP, make_tool
from tests.gpu import fault_kernels, sanitizer

RAN = """print('watched: {"event": "end", "program": "%s", "op": "", "seconds": 1, "failures": %s}', flush=True)"""


def list_instructions(control: str) -> list[str]:
    """Return the opcodes of a control, of those that order accesses to shared memory or are such, in their order."""
    done = sass.run_nvdisasm(fault_kernels.make_cubin(control))
    assert done.returncode == 0
    return re.findall(r"\b(STS|LDS(?= R\d)|BAR|LDGSTS|ARRIVES|WARPSYNC|SYNCS\.ARRIVE)\b", done.stdout)


def test_controls_are_what_they_say(monkeypatch, tmp_path):
    require_compiler("nvrtc")
    isolate(monkeypatch, tmp_path / "cache")
    race, release, synced, copy = map(list_instructions, fault_kernels.CONTROLS)
    fault_kernels.make_cubin.cache_clear()
    assert race == ["STS", "LDS"]
    assert release == ["STS", "BAR", "STS", "LDS", "SYNCS.ARRIVE"]
    assert synced == ["STS", "BAR", "STS", "LDS", "WARPSYNC", "SYNCS.ARRIVE"]
    assert copy[:2] == ["STS", "BAR"] and copy.index("LDGSTS") == copy.index("ARRIVES") - 1


def test_racecheck_watches_every_kernel_and_the_controls():
    symbols = [*map(plain_symbol, PLAIN_KERNELS), *map(kernel_name, OP_KINDS), *fault_kernels.CONTROLS]
    assert all(name.startswith("deep_") for name in symbols)


@pytest.mark.parametrize(
    "code, limit_s, verdict, said",
    [
        (f"{DONE}\n{SUMMED_UP}", 60.0, False, []),
        (DONE, 60.0, None, []),
        ("time.sleep(60)", 3.0, None, ["with the controls: did not end in 3 s"]),
        ("", 60.0, None, ["with the controls: the child died"]),
    ],
)
def test_controls_of_a_child_that_did_not_end_are_unknown(monkeypatch, tmp_path, code, limit_s, verdict, said):
    """What the tool had reported by then is known."""
    race, *right = fault_kernels.CONTROLS
    ran = "\n".join(RAN % (name, "[]") for name in fault_kernels.CONTROLS)
    reports = HAZARD.format(count=3).replace("deep_gemm_fp8_gemm", race)
    tool = make_tool(monkeypatch, tmp_path, "racecheck", f"{ran}\nprint({reports!r}, flush=True)\n{code}", limit_s)
    failures, controls = sanitizer.check_controls(tool)
    assert controls == {race: True, **dict.fromkeys(right, verdict)}
    unknown = [f"control {name} was not run to its end" for name in right if verdict is None]
    for failure, start in zip(failures, said + unknown, strict=True):
        assert failure.startswith(f"racecheck: {start}")


def test_a_control_that_is_missing_or_failed_is_unknown(monkeypatch, tmp_path):
    race, missing, failed, ended = fault_kernels.CONTROLS
    ran = [RAN % (race, "[]"), RAN % (failed, '["no memory"]'), RAN % (ended, "[]")]
    tool = make_tool(monkeypatch, tmp_path, "racecheck", "\n".join([*ran, DONE, SUMMED_UP]))
    failures, controls = sanitizer.check_controls(tool)
    assert controls == {race: False, missing: None, failed: None, ended: False}
    unknown = [f"racecheck: control {name} was not run to its end" for name in (missing, failed)]
    assert failures == [*unknown, "racecheck: did not report the planted race"]
