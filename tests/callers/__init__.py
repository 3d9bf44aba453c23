"""Programs in the spellings of those who call DeepGEMM: which names, keywords and positions they use, and what they
take for granted. `python -m tests.callers.run` runs them on a GPU, the tests on the CPU.
"""
