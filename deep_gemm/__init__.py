"""FP8 matrix products for NVIDIA GPUs: a drop-in for the DeepGEMM API with measured and learned configurations."""
