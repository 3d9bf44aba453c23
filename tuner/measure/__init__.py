"""Measuring configs of one problem on a GPU, in a process of its own, and the statistics of paired timings."""
