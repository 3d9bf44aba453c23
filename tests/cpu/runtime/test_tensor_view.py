"""How operands are read if torch has no DLPack exchange API of a known version: through attributes, with the same
results.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: Prepares `torch.Tensor` before the op first looks at it; the struct starts with its major version.
WITHOUT = {
    "no capsule": "torch.Tensor.__dlpack_c_exchange_api__ = None",
    "foreign capsule": "torch.Tensor.__dlpack_c_exchange_api__ = make_capsule(b'other_name', 1)",
    "unknown major version": "torch.Tensor.__dlpack_c_exchange_api__ = make_capsule(b'dlpack_exchange_api', 99)",
}
PROBE = """
import ctypes, json, os, sys
import torch
struct = (ctypes.c_uint32 * 16)()
def make_capsule(name, major):
    global kept
    struct[0], kept = major, name
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(ctypes.addressof(struct), kept, None)
# Forked before deep_gemm is imported: one child for each argument, which is what it runs first.
for prepare in sys.argv[1:]:
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
    else:
        exec(prepare)
        break
else:
    sys.exit()
import deep_gemm
from deep_gemm.errors import DeepGemmError
from tests.fakes.operands import count_wrong, make_operands, make_output, make_reference
a, scale_a, b, scale_b = make_operands(20, 136, 272)
outcomes = {}
def run(name, a=a, scale_a=scale_a, d=None):
    d = make_output(20, 136) if d is None else d
    try:
        deep_gemm.fp8_gemm_nt((a, scale_a), (b, scale_b), d)
        outcomes[name] = count_wrong(d, *make_reference(a, scale_a, b, scale_b)) if d.device.type == "cpu" else 0
    except DeepGemmError as error:
        outcomes[name] = f"{type(error).__name__}: {error}"
wide = torch.zeros(20, 304).to(a.dtype)
wide[:, 16:288] = a
run("plain"), run("slice", a=wide[:, 16:288]), run("MN-major scales", scale_a=scale_a.t().contiguous().t())
run("dtype", a=a.float()), run("sparse", a=torch.eye(20).to_sparse()), run("mixed", a=a.to("meta"))
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def results() -> dict[str, dict]:
    """What the probe found, by the name of what torch lacks."""
    command = [sys.executable, "-c", PROBE, *WITHOUT.values()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(WITHOUT, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", WITHOUT)
def test_attributes_serve_as_well(results, name):
    outcomes = results[name]
    assert [outcomes[valid] for valid in ("plain", "slice", "MN-major scales")] == [0, 0, 0]
    assert outcomes["dtype"].startswith("DtypeError: a.dtype = torch.float32")
    assert outcomes["sparse"].startswith("ArgumentError: a: a tensor without plain strided memory")
    assert outcomes["mixed"].startswith("DeviceError: scale_a is on cpu and a on meta")
