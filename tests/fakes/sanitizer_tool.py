"""A tool of compute-sanitizer whose program is some Python, and what tool and child write."""

import stat
import sys
import time

from tests.gpu import sanitizer_tools
from tests.gpu.sanitizer_tools import Tool

HAZARD = """\
========= Error: Race reported between Write access at deep_gemm_fp8_gemm+0x90 in gemm.cuh:13
=========     and Read access at deep_gemm_fp8_gemm+0xa0 in gemm.cuh:14 [{count} hazards]
=========
"""
RAN = """
print('watched: {"event": "start", "total": 3}')
print('watched: {"event": "begin", "program": "a", "at": 0}')
print('watched: {"event": "end", "program": "a", "op": "x", "seconds": 1.5, "failures": %s}', flush=True)
"""
DONE = """print('watched: {"event": "done"}', flush=True)"""
SUMMED_UP = "print('========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)', flush=True)"


def make_tool(monkeypatch, tmp_path, name: str, code: str, timeout_s: float = 60.0, **options) -> Tool:
    """Return a tool whose program is some Python; its arguments are those of compute-sanitizer."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(f"#!{sys.executable}\nimport sys, time\n{code}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sanitizer_tools, "find_tool", lambda: str(program))
    tool = Tool(name, time.time() + timeout_s, **options)
    tool.timeout_s = timeout_s
    return tool
