"""The optuna studies of a sweep: what that of a problem is called and knows, and where its trials are shown."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial

from tuner.db.rows import Identity
from tuner.search.study import ProblemStudy, name_study
from tuner.search.study_storage import StudyStorage


class SweepStudies:
    """The studies of one sweep, copied to the storage `url` where there is one.

    `identities` are those of each op kind. `predict(problem, configs)` returns {config: log of the time expected},
    None: searches that follow an order follow the heuristic's estimates.
    """

    def __init__(
        self, url: str, warn: Callable[[str], None], identities: dict[str, Identity], predict: Callable | None
    ):
        self.storage = StudyStorage(url, warn) if url else None
        self.identities, self.predict = identities, predict

    def describe(self, problem) -> dict:
        """Return the fields of a Request that concern the problem's study."""
        facts = asdict(self.identities[problem.op]) | {"problem": str(problem)}
        name = name_study(problem.op, problem, facts["kernel_hash"])
        predict = partial(self.predict, problem) if self.predict else None
        return {"name": name, "facts": facts, "predict": predict, "on_study": partial(self.show, name, facts)}

    def show(self, name: str, facts: dict, study: ProblemStudy) -> None:
        """Copy what is new in a study to the storage."""
        if self.storage:
            self.storage.show(name, facts, study.take_news())

    def show_earlier(self, problems: Iterable, history: dict[str, list]) -> None:
        """Show the studies of problems that are not measured again; `history` has their outcomes by key."""
        for problem in problems:
            if problem.key in history:
                described = self.describe(problem)
                configs = list(dict.fromkeys(outcome.config for outcome in history[problem.key]))
                study = ProblemStudy(configs, "analytic", 0, None, described["name"], described["facts"])
                study.tell(history[problem.key])
                described["on_study"](study)

    def close(self) -> None:
        """Wait until the storage has everything."""
        if self.storage:
            self.storage.close()
