"""Tests of deep_gemm: `cpu` runs anywhere, `gpu` needs an SM90 GPU (`make gpu-test`)."""
