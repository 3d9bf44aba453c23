"""GPU correctness suite: `python -m tests.gpu.run --out FILE` writes the record that is committed."""
