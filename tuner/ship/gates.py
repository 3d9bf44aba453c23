"""The gates of `export`: what nested validation must show before a selector may be shipped."""

from dataclasses import asdict, dataclass

from tuner.learn.evaluation import Table

#: Limits for the guarded model on left-out families: geometric-mean regret, 95 % quantile of the regret, share of
#: problems that the model answers.
MAX_MEAN = 0.03
MAX_P95 = 0.08
MIN_ANSWERED = 0.70


@dataclass(frozen=True)
class Verdict:
    """One gate's verdict; `value` is None where nothing was measured, `op` is "" where the op kind is clear."""

    gate: str
    value: float | None
    limit: float
    rule: str
    op: str = ""

    @property
    def met(self) -> bool:
        """Return whether the gate is met."""
        if self.value is None:
            return False
        return self.value >= self.limit if self.rule == ">=" else self.value <= self.limit

    def to_json(self) -> dict:
        """Return the verdict as JSON values."""
        found = asdict(self) | {"met": self.met}
        if not self.op:
            del found["op"]
        return found


def check_gates(splits: dict[str, Table]) -> list[Verdict]:
    """Return one verdict per gate, on left-out families or the rounds of a calibration; with neither none is met."""
    model = (splits.get("family") or splits.get("rounds", {})).get("model")
    mean, p95, answered = (None, None, None) if model is None else (model.mean, model.p95, model.answered)
    return [
        Verdict("mean regret", mean, MAX_MEAN, "<="),
        Verdict("p95 regret", p95, MAX_P95, "<="),
        Verdict("share answered", answered, MIN_ANSWERED, ">="),
    ]


def is_passed(verdicts: list[Verdict]) -> bool:
    """Return whether every gate is met."""
    return all(verdict.met for verdict in verdicts)


def format_verdict(verdict: Verdict) -> str:
    """Return one gate as a sentence."""
    value = "not measured" if verdict.value is None else f"{verdict.value:.1%}"
    op = f"{verdict.op}: " if verdict.op else ""
    return f"{op}{verdict.gate} {value} ({'met' if verdict.met else 'missed'}: {verdict.rule} {verdict.limit:.0%})"
