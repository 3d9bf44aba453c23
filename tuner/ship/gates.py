"""The gates of `export`: what nested validation must show before a selector may be shipped."""

#: Leave one family out, guarded model: geometric-mean regret, 95 % quantile of regret, share of problems that the model
#: answers.
MAX_MEAN = 0.03
MAX_P95 = 0.08
MIN_ANSWERED = 0.70


def check_gates(report: dict) -> list[dict]:
    """Return one verdict per gate: {"gate", "value", "limit", "met"}; without a family split nothing is met."""
    model = report.get("family", {}).get("model")
    verdicts = [
        ("mean regret", "mean", MAX_MEAN, False),
        ("p95 regret", "p95", MAX_P95, False),
        ("share answered", "answered", MIN_ANSWERED, True),
    ]
    return [
        make_verdict(name, model[field] if model else None, limit, at_least)
        for name, field, limit, at_least in verdicts
    ]


def make_verdict(name: str, value: float | None, limit: float, at_least: bool) -> dict:
    """Return one gate's verdict."""
    met = value is not None and (value >= limit if at_least else value <= limit)
    return {"gate": name, "value": value, "limit": limit, "rule": ">=" if at_least else "<=", "met": met}


def is_passed(verdicts: list[dict]) -> bool:
    """Return whether every gate is met."""
    return all(verdict["met"] for verdict in verdicts)


def format_verdict(verdict: dict) -> str:
    """Return one gate as a sentence."""
    value = "not measured" if verdict["value"] is None else f"{verdict['value']:.1%}"
    op = f"{verdict['op']}: " if "op" in verdict else ""
    return (
        f"{op}{verdict['gate']} {value} ({'met' if verdict['met'] else 'missed'}: {verdict['rule']}"
        f" {verdict['limit']:.0%})"
    )
