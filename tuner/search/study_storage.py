"""Shows the studies of a sweep in an optuna storage while it runs, for optuna-dashboard and optuna's own plots.

The storage is a copy that nothing is read from but the keys of the configs it has: a second run adds what is new. It is
written by a thread of its own, so that a slow storage delays no measurement. One that fails costs a warning; the sweep
and its database go on without it.
"""

import queue
import threading
from collections.abc import Callable, Mapping

import optuna

from deep_gemm.text import printable
from tuner import errors
from tuner.credentials import hide_credentials

#: How long the end of a sweep waits for a slow storage.
CLOSE_S = 20.0
#: What must be equal before the trials of two sweeps may stand in one study.
IDENTITY = ("sku", "kernel_hash", "compiler", "regime")


def check_url(url: str) -> str:
    """Return the URL of a storage. Raises: UsageError for anything without a scheme."""
    if "://" not in url:
        raise errors.UsageError(f"--study-storage {url}: must be a URL, such as sqlite:///studies.db")
    return url


class StudyStorage:
    """A storage named by `url` while a sweep runs; `warn` is called at most once, with one line."""

    def __init__(self, url: str, warn: Callable[[str], None]):
        self.url, self.warn, self.has_failed = check_url(url), warn, False
        self.waiting: queue.SimpleQueue = queue.SimpleQueue()
        self.known: dict[str, set[str]] = {}
        self.studies: dict[str, optuna.Study] = {}
        self.thread = threading.Thread(target=self.write_all, name="study storage", daemon=True)
        self.thread.start()

    def show(self, name: str, facts: Mapping[str, str], trials: list) -> None:
        """Add finished trials to a study, which is created with the user attributes `facts`."""
        if not self.has_failed:
            self.waiting.put((name, facts, trials))

    def close(self) -> None:
        """Wait until everything is written, but at most CLOSE_S."""
        self.waiting.put(None)
        self.thread.join(CLOSE_S)
        if self.thread.is_alive():
            self.fail(f"it is still busy after {CLOSE_S:.0f} s")

    def write_all(self) -> None:
        """Write what waits, until `close` or the first failure."""
        try:
            storage = optuna.storages.get_storage(self.url)
            while (item := self.waiting.get()) is not None:
                self.write(storage, *item)
        except Exception as error:  # whatever a storage and its driver raise
            self.fail(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")

    def fail(self, reason: str) -> None:
        """Give the storage up."""
        self.has_failed = True
        text = f"--study-storage {self.url}: {reason}; the sweep goes on without it"
        self.warn(printable(hide_credentials(text), 300))

    def write(self, storage, name: str, facts: Mapping[str, str], trials: list) -> None:
        """Add those trials whose config the study does not have."""
        if name not in self.studies:
            self.studies[name] = find_study(storage, name, facts)
            found = self.studies[name].get_trials(deepcopy=False)
            self.known[name] = {trial.user_attrs.get("config_key", "") for trial in found}
        for trial in trials:
            key = trial.user_attrs["config_key"]
            if key not in self.known[name]:
                self.studies[name].add_trial(trial)
                self.known[name].add(key)


def find_study(storage, name: str, facts: Mapping[str, str]) -> optuna.Study:
    """Return the study called `name`; where that is of another GPU model, regime or compiler, one that says its own."""
    study = optuna.create_study(storage=storage, study_name=name, direction="minimize", load_if_exists=True)
    present = study.user_attrs
    if any(present.get(fact, facts.get(fact)) != facts.get(fact) for fact in IDENTITY):
        own = " ".join(facts.get(fact, "") for fact in IDENTITY if fact != "kernel_hash")
        study = optuna.create_study(
            storage=storage, study_name=f"{name} {own}", direction="minimize", load_if_exists=True
        )
        present = study.user_attrs
    for fact, value in facts.items():
        if fact not in present:
            study.set_user_attr(fact, value)
    return study
