"""`sweep --study-storage`: the studies of a sweep in an optuna storage, which costs a warning at worst."""

import json
import threading

import optuna
import pytest
from optuna.trial import TrialState

from deep_gemm import _C
from tests.fakes.in_process_worker import InProcessWorker
from tests.fakes.sweeps import read_all, run_sweep
from tuner import cli
from tuner.db import Store
from tuner.search import study_storage, sweep
from tuner.search.candidates import SweepOptions
from tuner.search.study_storage import StudyStorage
from tuner.search.sweep import Sweep

DEVICE = _C.Device.known("h200")
FEW = _C.get_candidates(_C.Problem("fp8_gemm", 64, 512, 512), DEVICE)[:5]
PROBLEMS = [_C.Problem("fp8_gemm", 64, 512, 512), _C.Problem("bf16_gemm", 64, 256, 512)]


@pytest.fixture
def url(tmp_path):
    """The URL of a storage that does not exist yet."""
    return f"sqlite:///{tmp_path}/studies.db"


def load(url: str) -> dict[str, optuna.Study]:
    """Return the studies of a storage by name."""
    return {name: optuna.load_study(study_name=name, storage=url) for name in optuna.get_all_study_names(url)}


def states(found: dict[str, optuna.Study]) -> dict[str, list[str]]:
    """Return the states of the trials of each study."""
    return {name: sorted(trial.state.name for trial in one.trials) for name, one in found.items()}


def test_a_sweep_tells_its_studies(tmp_path, url):
    crashing = FEW[1]
    run_sweep(tmp_path / "a.db", PROBLEMS, InProcessWorker(crashing=[crashing]), configs=FEW[:3], study_storage=url)
    rows, found = read_all(tmp_path / "a.db")[0], load(url)
    assert [name.rsplit("/", 1)[0] for name in found] == ["fp8_gemm/m=64 n=512 k=512", "bf16_gemm/m=64 n=256 k=512"]
    for problem, one in zip(PROBLEMS, found.values(), strict=True):
        searched = {row.config_key: row for row in rows if row.block.problem == problem and row.role == "search"}
        assert {trial.user_attrs["config_key"] for trial in one.trials} == searched.keys()
        assert one.user_attrs["regime"] == "simulated" and one.user_attrs["problem"] == str(problem)
        for trial in one.trials:
            row = searched[trial.user_attrs["config_key"]]
            assert trial.user_attrs["status"] == row.status
            assert (trial.state == TrialState.COMPLETE) == (row.status == "ok")
            assert trial.user_attrs.get("samples") == row.num_samples
    failed = [trial for trial in next(iter(found.values())).trials if trial.state == TrialState.FAIL]
    assert [trial.user_attrs["config"] for trial in failed] == [str(crashing)]


@pytest.mark.full
def test_a_second_run_continues_without_duplicates(tmp_path, url):
    path, wide = tmp_path / "a.db", {"space": "wide", "sampler": "random"}
    run_sweep(path, PROBLEMS[:1], num_trials=4, **wide)
    run_sweep(path, PROBLEMS[:1], num_trials=4, study_storage=url, **wide)
    (first,) = states(load(url)).values()
    assert len(first) >= 4
    run_sweep(path, PROBLEMS[:1], num_trials=12, study_storage=url, **wide)
    (one,) = load(url).values()
    second = states(load(url))
    keys = [trial.user_attrs["config_key"] for trial in one.trials]
    assert len(keys) == len(set(keys)) > len(first)
    assert set(keys) == {row.config_key for row in read_all(path)[0] if row.role == "search"}
    run_sweep(path, PROBLEMS[:1], num_trials=12, study_storage=url, **wide)
    assert states(load(url)) == second


def sweep_with_warnings(path, url: str) -> tuple[dict, list[str]]:
    """Return the summary of a sweep and its warnings."""
    warned: list[str] = []

    def note(name: str, facts: dict) -> None:
        warned.extend([facts["text"]] if name == "warning" else [])

    with Store.open(path) as store:
        options = SweepOptions(PROBLEMS, path, backend="simulated", configs=FEW, study_storage=url)
        return Sweep(options, store, InProcessWorker(), note).run(), warned


@pytest.mark.parametrize("fault", ["absent", pytest.param("read-only", marks=pytest.mark.full), "later"])
def test_a_storage_that_fails_costs_a_warning(tmp_path, url, fault, monkeypatch):
    if fault == "absent":
        url = "sqlite:////absent/folder/studies.db"
    elif fault == "read-only":
        optuna.create_study(storage=url)
        url = url.replace("sqlite:///", "sqlite:///file:") + "?mode=ro&uri=true"
    else:
        monkeypatch.setattr(optuna.Study, "add_trial", refuse_in_thread(optuna.Study.add_trial))
    summary, warned = sweep_with_warnings(tmp_path / "a.db", url)
    assert summary["measured"] == 2 and summary["failed"] == {} and len(warned) == 1
    assert warned[0].startswith("--study-storage sqlite:///") and "goes on without it" in warned[0]
    plain = run_sweep(tmp_path / "b.db", PROBLEMS, configs=FEW)
    assert plain["statuses"] == summary["statuses"]


def refuse_in_thread(add_trial):
    """Return an add_trial that fails for the storage: its studies are written by another thread."""

    def refuse(self, trial) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise OSError("disk full")
        add_trial(self, trial)

    return refuse


def test_a_storage_that_hangs_ends_with_the_sweep(url, monkeypatch):
    release, warned = threading.Event(), []
    monkeypatch.setattr(study_storage, "CLOSE_S", 0.05)
    monkeypatch.setattr(StudyStorage, "write", lambda self, *item: release.wait(30))
    storage = StudyStorage(url, warned.append)
    storage.show("one", {}, [])
    storage.close()
    release.set()
    storage.thread.join(30)
    assert len(warned) == 1 and "still busy" in warned[0] and not storage.thread.is_alive()


def test_other_boards_get_a_study_of_their_own(url):
    facts = {"sku": "one", "kernel_hash": "h", "compiler": "nvrtc", "regime": "graph-cold"}
    storage = optuna.storages.get_storage(url)
    same = [study_storage.find_study(storage, "op/m/h", facts).study_name for _ in range(2)]
    other = [study_storage.find_study(storage, "op/m/h", facts | {"sku": "two"}) for _ in range(2)]
    assert same == ["op/m/h"] * 2 and [one.study_name for one in other] == ["op/m/h two nvrtc graph-cold"] * 2
    assert other[0].user_attrs["sku"] == "two"


def test_passwords_are_neither_shown_nor_stored(tmp_path):
    warned = []
    url = "nonsense://me:secret@host/studies"
    storage = StudyStorage(url, warned.append)
    storage.close()
    assert "secret" not in warned[0] and "nonsense://***@host" in warned[0]
    run_sweep(tmp_path / "a.db", PROBLEMS[:1], configs=FEW, argv=["sweep", "--study-storage", url])
    assert b"secret" not in (tmp_path / "a.db").read_bytes()


def test_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sweep, "make_worker", lambda options: InProcessWorker())
    shapes = tmp_path / "shapes.jsonl"
    shapes.write_text(PROBLEMS[0].to_json())
    configs = tmp_path / "configs.json"
    configs.write_text(json.dumps([config.as_dict() for config in FEW]))
    command = ["sweep", "--shapes", str(shapes), "--configs", str(configs), "--db", str(tmp_path / "a.db")]
    command += ["--backend", "simulated", "--json"]
    assert cli.run([*command, "--study-storage", "studies.db"]) == 2
    assert "must be a URL" in capsys.readouterr().err and not (tmp_path / "a.db").exists()
    assert cli.run([*command, "--study-storage", "sqlite:////absent/studies.db"]) == 0
    said = capsys.readouterr()
    assert "warning: --study-storage" in said.err and json.loads(said.out)["measured"] == 1
