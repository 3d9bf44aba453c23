"""What measuring knows of op families: there is a row for each, and what a row says is used."""

import torch

import deep_gemm
from deep_gemm import _C
from tuner.measure.checked_output import CheckedOutput, Reference
from tuner.measure.operands import FAMILIES, FamilyOperands, OperandPool, get_layouts

PROBLEM = _C.Problem("bf16_gemm", 16, 24, 64)


def test_every_op_family_has_a_row():
    assert set(FAMILIES) == {kind.family for kind in _C.OP_KINDS}


def test_operands_are_those_of_the_family(monkeypatch):
    monkeypatch.setitem(FAMILIES, "gemm", FamilyOperands(make_layouts=lambda problem: {"a": problem.k}))
    assert get_layouts(PROBLEM) == {"a": 64}


def test_a_product_is_compared_as_the_family_finishes_it(monkeypatch):
    operands = OperandPool("cpu", 1 << 10, seed=0).make_ring(PROBLEM)[0]
    output = CheckedOutput(PROBLEM, "cpu")
    output.prepare(None)
    deep_gemm.bf16_gemm_nt(operands.a, operands.b, output.d)
    reference = Reference(PROBLEM, operands)
    assert (output.d < 0).any() and reference.compare(output)[0] is None
    monkeypatch.setitem(FAMILIES, "gemm", FamilyOperands(finish=torch.relu))
    assert "differ from the dequantised product" in reference.compare(output)[0]
    output.d.relu_()
    assert reference.compare(output)[0] is None
