"""Compile kernels at run time: source -> cubin -> cache."""
