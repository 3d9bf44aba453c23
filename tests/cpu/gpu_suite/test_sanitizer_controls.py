"""The kernels whose verdict by racecheck is known: they are what they are said to be."""

import re

from tests.fakes import sass
from tests.fakes.compiler import isolate, require_compiler
from tests.gpu import fault_kernels


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
    assert all(re.search("deep_gemm_", name) for name in fault_kernels.CONTROLS)
