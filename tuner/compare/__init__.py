"""Compare two sets of kernels: where they come from, what they compile to, and which one is faster."""
