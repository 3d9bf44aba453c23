"""The size of a selector's trees, chosen once on the recorded problems; light to import, for the command line.

Half of the trees with a rate of 0.15 take 1.2 us less for a choice, but learn less (figures in docs/experiments.md).
"""

TREES, LEAVES, RATE = 128, 15, 0.2
