"""Another DeepGEMM in the process, and this one twice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FULL = pytest.mark.full

#: A vendored copy: it defines its ops in the namespace of upstream.
VENDORED = """
library = torch.library.Library("deep_gemm", {kind!r})
for name in ("fp8_gemm_nt", "bf16_gemm_nt", "get_num_sms"):
    library.define(name + "() -> int")
    library.impl(name, lambda: 42, "CompositeExplicitAutograd")
"""

USE = """
x = torch.ones(8, 16, dtype=torch.bfloat16)
d = torch.empty(8, 8)
def program(x, d):
    deep_gemm.bf16_gemm_nt(x, x, d)
    return d + 1
for run in (program, torch.compile(program, fullgraph=True, backend="eager")):
    assert torch.equal(run(x, d.zero_()), torch.full((8, 8), 17.0))
torch.ops.deep_gemm_tuned.bf16_gemm_nt(x, x, d.zero_())
assert d.eq(16).all()
"""

AGAIN = """
import gc, importlib, sys
importlib.reload(deep_gemm.library).register_ops()
importlib.reload(deep_gemm.tracing)
deep_gemm = importlib.reload(deep_gemm)
gc.collect()
"""

#: As a second copy on sys.path is imported: nothing of the first is left in sys.modules but the native module, of which
#: a process has one.
COPY = """
import gc, sys
first = deep_gemm
for name in [name for name in sys.modules if name.partition(".")[0] == "deep_gemm" and name != "deep_gemm._C"]:
    del sys.modules[name]
import deep_gemm
assert deep_gemm is not first
del first
gc.collect()
"""


def run_in_new_process(*parts: str) -> str:
    """Return what a program prints at its end, run in a process of its own with warnings as errors."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error::RuntimeWarning"}
    code = "\n".join(("import torch", *parts, "print('ended')"))
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "kind, is_first",
    [
        ("DEF", True),
        *(pytest.param(*case, marks=FULL) for case in (("FRAGMENT", False), ("DEF", False), ("FRAGMENT", True))),
    ],
)
def test_a_vendored_deep_gemm_loads_before_and_after(kind, is_first):
    vendored, own = VENDORED.format(kind=kind), "import deep_gemm"
    order = (vendored, own) if is_first else (own, vendored)
    assert "42\nended" in run_in_new_process(*order, USE, "print(torch.ops.deep_gemm.fp8_gemm_nt())")


@pytest.mark.parametrize(
    "again", [pytest.param(AGAIN, id="reloaded", marks=FULL), pytest.param(COPY, id="imported again")]
)
@pytest.mark.parametrize("use_before", [pytest.param("", id="unused"), pytest.param(USE, id="used", marks=FULL)])
def test_this_package_loads_twice(again, use_before):
    assert "ended" in run_in_new_process("import deep_gemm", use_before, again, USE)
