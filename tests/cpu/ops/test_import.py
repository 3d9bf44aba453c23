"""`import deep_gemm` works on any machine and initialises no device; calls on CPU tensors need no driver either."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import deep_gemm

ROOT = Path(__file__).parents[3]
PROBE = """
import json, os, sys, threading
import torch
before = set(sys.modules), threading.active_count(), len(os.listdir("/proc/self/fd"))
import deep_gemm
effects = {
    "modules": sorted(set(sys.modules) - before[0]), "threads": threading.active_count() - before[1],
    "descriptors": len(os.listdir("/proc/self/fd")) - before[2],
}
def run():
    a = deep_gemm.per_token_cast_to_fp8(torch.ones(4, 256), False)
    b = deep_gemm.per_block_cast_to_fp8(torch.ones(8, 256), False)
    d = torch.empty(4, 8, dtype=torch.bfloat16)
    deep_gemm.fp8_gemm_nt(a, b, d)
    return d[0, 0].item()
# Forked before torch starts its threads, which do not survive a fork.
child = os.fork()
if child == 0:
    os._exit(0 if run() > 0 else 1)
effects["forked"] = os.waitpid(child, 0)[1]
effects["product"] = run()
effects["called"] = sorted(set(sys.modules) - before[0])
effects["maps"] = open("/proc/self/maps").read().count("libcuda.so")
try:
    deep_gemm.get_device()
except deep_gemm.errors.DeviceError as error:
    effects["no_driver"] = str(error)
print(json.dumps(effects))
"""


@pytest.fixture(scope="module")
def effects(tmp_path_factory):
    """What importing and one CPU call do in a process without HOME, in a folder that cannot be written."""
    folder = tmp_path_factory.mktemp("read_only")
    folder.chmod(0o555)
    # An empty library folder first on the path hides no driver of a real GPU machine, but CUDA_VISIBLE_DEVICES hides
    # its GPUs.
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_import_starts_nothing(effects):
    assert effects["threads"] == 0 and effects["descriptors"] == 0
    assert "deep_gemm.plan" not in effects["modules"]
    assert "deep_gemm.nn" not in effects["modules"]
    assert not [name for name in effects["modules"] if name.startswith("deep_gemm.jit")]


def test_a_cpu_call_needs_no_driver_and_no_compiler(effects):
    assert effects["product"] == pytest.approx(256.0, rel=2.0**-8)
    assert effects["maps"] == 0
    assert not [name for name in effects["called"] if name.startswith("deep_gemm.jit")]


def test_without_a_gpu_the_device_is_a_typed_error(effects):
    assert "pass CPU tensors to run the reference" in effects["no_driver"]


def test_a_fork_after_import_works(effects):
    assert effects["forked"] == 0


def test_public_names():
    assert all(hasattr(deep_gemm, name) for name in deep_gemm.__all__)
    assert deep_gemm.__all__ == sorted(deep_gemm.__all__)
    api = {
        "fp8_gemm_nt",
        "get_best_config",
        "get_analytic_config",
        "set_num_sms",
        "get_num_sms",
        "get_tma_aligned_size",
        "get_mn_major_tma_aligned_tensor",
    }
    api |= {"transform_sf_into_required_layout", "ceil_div", "align", "utils", "testing"}
    api |= {f"per_{granularity}_cast_to_fp8" for granularity in ("token", "channel", "block", "custom_dims")}
    api |= {f"{kind}_gemm_{layout}" for kind in ("fp8", "bf16", "cublaslt") for layout in ("nt", "nn", "tn", "tt")} | {
        "fp8_gemm_nt_skip_head_mid"
    }
    api |= {f"m_grouped_{kind}_gemm_{layout}_contiguous" for kind in ("fp8", "bf16") for layout in ("nt", "nn")}
    api |= {
        "m_grouped_fp8_gemm_nt_masked",
        "m_grouped_bf16_gemm_nt_masked",
        "fp8_m_grouped_gemm_nt_masked",
        "bf16_m_grouped_gemm_nt_masked",
    }
    api |= {f"k_grouped_{kind}_contiguous" for kind in ("fp8_gemm_nt", "fp8_gemm_tn", "bf16_gemm_tn")}
    api |= {f"get_{dims}_alignment_for_contiguous_layout" for dims in ("mk", "m", "k")} | {
        "set_mk_alignment_for_contiguous_layout"
    }
    api |= {"set_tc_util", "get_tc_util", "set_pdl", "get_pdl", "set_batch_invariant", "is_batch_invariant"}
    assert api <= set(deep_gemm.__all__)


def test_choosing_a_config_needs_no_gpu():
    device = deep_gemm.Device.known("h200")
    problem = deep_gemm.Problem("fp8_gemm", 64, 2112, 7168)
    for choose in (deep_gemm.get_best_config, deep_gemm.get_analytic_config):
        assert deep_gemm.is_legal(problem, choose(problem, device), device)


#: Imports the package in one fork for each value of the variable; torch, which takes long, is imported once.
INVARIANCE_PROBE = """
import os, torch
OPS = ("bf16_gemm", "fp8_gemm", "m_grouped_bf16_gemm_contiguous")
for value in (None, "0", "1"):
    child = os.fork()
    if child == 0:
        os.environ.pop("DG_BATCH_INVARIANT", None)
        os.environ |= {"DG_BATCH_INVARIANT": value} if value else {}
        import deep_gemm
        print(value, deep_gemm.is_batch_invariant(), *map(deep_gemm.is_batch_invariant, OPS), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_batch_invariance_comes_from_the_environment():
    command = [sys.executable, "-c", INVARIANCE_PROBE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == [
        "None None True False False",
        "0 False False False False",
        "1 True True True False",
    ]
