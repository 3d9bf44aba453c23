"""Layers that compute in FP8, forward and backward, for models in PyTorch: docs/nn.md.

This package is imported by `import deep_gemm.nn`, or when `deep_gemm.nn` is first used.
"""

from deep_gemm.nn.convert import is_suitable, quantize_
from deep_gemm.nn.experts import Fp8Experts
from deep_gemm.nn.grouped import Fp8GroupedLinear
from deep_gemm.nn.linear import Fp8Linear

__all__ = ["Fp8Experts", "Fp8GroupedLinear", "Fp8Linear", "is_suitable", "quantize_"]
