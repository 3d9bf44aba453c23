"""Suspects of a comparison: which pairs a second measurement must settle, and what its answer means."""

from deep_gemm import _C
from tuner.compare.blocks import pair_blocks
from tuner.compare.recorded import MIN_PROBLEMS, Finding, Part

#: What a second measurement looks at beyond the suspects: pairs that would be so unlikely between equal kernels.
DOUBTFUL = 0.1
MAX_DOUBTFUL = 64


def list_suspects(parts: list[Part]) -> list[tuple[_C.Problem, _C.Config]]:
    """Return the (problem, config) pairs that a second measurement must settle, and the most doubtful other ones."""
    found: dict[tuple[_C.Problem, _C.Config], None] = {}
    for part in parts:
        for finding in part.findings:
            if finding.verdict == "suspect":
                found |= dict.fromkeys(represent(part, finding))
    pairs = [finding for part in parts for finding in part.of_kind("pair") if finding.chance(1) <= DOUBTFUL]
    for finding in sorted(pairs, key=lambda one: one.chance(1))[:MAX_DOUBTFUL]:
        assert finding.problem is not None and finding.config is not None
        found[finding.problem, finding.config] = None
    return list(found)


def represent(part: Part, finding: Finding) -> list[tuple[_C.Problem, _C.Config]]:
    """Return the pairs whose second measurement settles a suspect.

    That is a pair itself, the fastest config of a problem, or of MIN_PROBLEMS problems for all of a sweep.
    """
    if finding.problem is not None and finding.config is not None:
        return [(finding.problem, finding.config)]
    blocks = [
        pairs
        for pairs in pair_blocks(part.found_a, part.found_b).values()
        if finding.problem in (None, pairs[0].a.block.problem)
    ]
    fastest = [min(pairs, key=lambda pair: pair.a.median_us or 0.0) for pairs in blocks]
    return [(pair.a.block.problem, pair.a.config) for pair in fastest[:: max(1, len(fastest) // MIN_PROBLEMS)]][
        :MIN_PROBLEMS
    ]


def settle(parts: list[Part], verdicts: dict[tuple[_C.Problem, _C.Config], str]) -> None:
    """Replace `suspect` by what a second measurement of list_suspects found: slower, or same.

    A suspect stays one where none of its pairs has an answer.
    """
    for part in parts:
        for finding in part.findings:
            if finding.kind == "config" or (finding.kind != "pair" and finding.verdict != "suspect"):
                continue
            names = {verdicts.get(pair) for pair in represent(part, finding)}
            if "slower" in names:
                finding.verdict = "slower"
            elif finding.verdict == "suspect" and names & {"faster", "same"}:
                finding.verdict = "same"
