"""Regimes: the ways of measuring. Times of different regimes are never put into one ranking without a word.

A sweep's own regime says how it launches and what is in the L2. Three kinds of its blocks have a regime of their own,
by what its name ends with: sentinels, which nothing ranks; finalists that were timed again after rests; and configs
whose energy was measured, which nothing ranks by time.
"""

#: That of a sweep without a GPU, whose times are estimates.
SIMULATED = "simulated"
SENTINEL = "-sentinel"
RESTED = "-rested"
ENERGY = "-energy"
#: What the names of regimes end with that are no sweep's own.
NOT_OWN = (SENTINEL, RESTED, ENERGY)


def name_sentinel(regime: str) -> str:
    """Return the regime of the sentinels of a sweep whose own regime is `regime`."""
    return regime + SENTINEL


def name_rested(regime: str) -> str:
    """Return the regime of launches after rests, of a sweep whose own regime is `regime`."""
    return regime + RESTED


def name_energy(regime: str) -> str:
    """Return the regime of measured energy, of a sweep whose own regime is `regime`."""
    return regime + ENERGY


def name_own(regime: str) -> str:
    """Return the sweep's own regime, of one of launches after rests."""
    return regime.removesuffix(RESTED)


def is_sentinel(regime: str) -> bool:
    """Return whether blocks of this regime are sentinels."""
    return regime.endswith(SENTINEL)


def is_rested(regime: str) -> bool:
    """Return whether launches of blocks of this regime came after rests."""
    return regime.endswith(RESTED)


def is_energy(regime: str) -> bool:
    """Return whether blocks of this regime hold the energy of configs."""
    return regime.endswith(ENERGY)


def is_simulated(regime: str) -> bool:
    """Return whether the times of this regime, or of one that belongs to it, are estimates."""
    return regime == SIMULATED or regime.startswith(f"{SIMULATED}-")


def is_own(regime: str) -> bool:
    """Return whether this is a sweep's own regime: of neither sentinels nor rests nor energy."""
    return not regime.endswith(NOT_OWN)
