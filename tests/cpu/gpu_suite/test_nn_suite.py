"""The GPU suite's jobs of deep_gemm.nn, run on the CPU with small sizes: right layers pass, wrong ones do not."""

import pytest
import torch

from deep_gemm.nn import Fp8GroupedLinear, Fp8Linear, dense_ops
from tests.gpu import nn_layers


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(nn_layers, "DEVICE", "cpu")


@pytest.mark.parametrize("check, sizes", [
    (nn_layers.check_dense, ((0, 16, 32), torch.bfloat16)),
    (nn_layers.check_dense, ((129, 144, 272), torch.float32)),
    (nn_layers.check_stored, ((130, 144, 272),)),
    (nn_layers.check_swiglu, (9, 48, 144)),
    (nn_layers.check_grouped, ((5, 0, 130), 48, 144)),
    (nn_layers.check_experts, (40, 2, 5, 144, 128)),
])  # fmt: skip
def test_right_layers_pass(check, sizes):
    cases, failures = nn_layers.within_poison(check, *sizes)
    assert cases >= 3 and failures == []


def test_wrong_layers_fail(monkeypatch):
    """A weight gradient that forgets a row, scales of another block, padding that is written."""
    right = dense_ops.make_gradient_pair
    monkeypatch.setattr(dense_ops, "make_gradient_pair", lambda rows: right(rows[:-1]))
    _, failures = nn_layers.check_dense((64, 32, 48), torch.float32)
    assert failures and all(failure.startswith("dw ") for failure in failures)
    monkeypatch.undo()
    monkeypatch.setattr(nn_layers, "DEVICE", "cpu")
    forward = Fp8GroupedLinear.forward
    monkeypatch.setattr(Fp8GroupedLinear, "forward", lambda self, x, ends: forward(self, x, ends) + 1)
    failures = nn_layers.check_grouped((5, 130), 48, 144)[1]
    assert any("padding is not 0" in failure for failure in failures)
    dense = Fp8Linear.forward
    monkeypatch.setattr(Fp8Linear, "forward", lambda self, x: dense(self, x) * float("nan"))
    assert nn_layers.check_dense((64, 32, 48), torch.float32)[1][0].startswith("y ")


def test_jobs_have_distinct_names_and_every_check_one():
    jobs = nn_layers.nn_jobs()
    names = [name for name, _ in jobs]
    assert len(set(names)) == len(names) and set(nn_layers.list_checks()) < set(names)
    compiled = [name for job_name, job in jobs if job_name.startswith("nn compile:") for name in job.args[0]]
    assert sorted(compiled) == sorted(nn_layers.list_checks())
