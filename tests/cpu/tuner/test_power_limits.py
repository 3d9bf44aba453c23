"""Boards with a lower power limit in the tuner: they start from what their model has, and keep their times apart."""

import json
from functools import partial

import pytest

from deep_gemm import _C, selection
from deep_gemm.artifact import read_artifact
from deep_gemm.jit.hashing import kernel_hash
from deep_gemm.selector import Selector
from tests.fakes import selectors, synthetic
from tests.fakes.databases import add_context
from tests.fakes.in_process_worker import InProcessWorker
from tuner import cli
from tuner.db import Store, snapshot_path
from tuner.db.rows import Identity
from tuner.learn import quick, sources
from tuner.learn.learner import Settings
from tuner.search import sweep
from tuner.ship import calibrate, exact, models

MODEL = _C.Device.known("h100")
BOARD = _C.Device.known(f"{MODEL.sku}-500w")
H200 = _C.Device.known("h200")
OP = "fp8_gemm"

pytestmark = pytest.mark.usefixtures("own_home")


def add_rows(store: Store, device: "_C.Device", count: int) -> None:
    """Add problems measured on a board."""
    context = add_context(store)
    shared = {name: context[name] for name in ("environment_id", "sweep_id")}
    shared["device_id"] = store.get_or_add_device(device.as_dict() | {"uuid": f"GPU-{device.sku}"})
    machine = synthetic.Machine()
    for m in range(1, 1 + count):
        problem = _C.Problem(OP, 64 * m, 2112, 7168)
        synthetic.write_block(store, machine.measure(problem, _C.get_candidates(problem, device)[::20]), shared)


def make_identity(sku: str) -> Identity:
    """Return the identity of rows of the kernels of the tests' artefacts."""
    return Identity(OP, sku, selectors.KERNEL_HASH, "nvrtc", "cold-graph")


def find_prior(store: Store, device: "_C.Device", hash_: str = synthetic.KERNEL_HASH) -> str:
    """Return the SKU of the rows that a calibration of `device` starts from."""
    found = quick.find_prior(store, device.sku, OP, hash_)
    assert found.device.sku == found.identity.sku
    return found.identity.sku


@pytest.fixture
def mixed(tmp_path):
    """A database with most rows of an H200, few of an H100, and fewer of H100s at two lower power limits."""
    path, other = tmp_path / "mixed.db", _C.Device.known(f"{MODEL.sku}-600w")
    with Store.open(path) as store:
        for device, count in ((H200, 6), (MODEL, 3), (BOARD, 2), (other, 2)):
            add_rows(store, device, count)
    with Store.open(path, "ro") as store:
        yield store


def test_a_calibration_starts_from_the_model_at_its_default_limit(mixed):
    assert find_prior(mixed, BOARD) == MODEL.sku
    assert find_prior(mixed, BOARD, "cd" * 32) == BOARD.sku, "its own rows of older kernels come first"
    assert find_prior(mixed, _C.Device.known(f"{MODEL.sku}-400w")) == MODEL.sku
    assert find_prior(mixed, MODEL) == find_prior(mixed, _C.Device.known("h20-300w")) == H200.sku, "the most rows"


def test_a_database_describes_the_board_and_keeps_its_rows_apart(mixed):
    assert sources.find_device(mixed, BOARD.sku) == sources.find_device(mixed, "h100-500w") == BOARD
    assert {row.block.sku for row in mixed.load_measurements(sku=BOARD.sku)} == {BOARD.sku}
    assert len({row.block.problem_key for row in mixed.load_measurements(sku=MODEL.sku)}) == 3


def test_the_recorded_sweep_of_the_model_is_read(monkeypatch):
    for device, sku in ((BOARD, MODEL.sku), (MODEL, MODEL.sku), (_C.Device.known("h20-300w"), H200.sku)):
        assert sources.find_recorded(device.sku) == snapshot_path(sku)
        monkeypatch.setattr(_C, "get_device", lambda *_, device=device: device)
        assert sources.find_recorded() == snapshot_path(sku)


def test_an_artefact_of_the_model_becomes_the_boards_own_and_none_the_other_way():
    content, limited = selectors.make_artifact(), _C.Device.known(f"{H200.sku}-500w")
    metadata, arrays = exact.read_base(content, make_identity(limited.sku), limited, is_strict=True)
    known, known_arrays = read_artifact(content)
    assert metadata == known | {"sku": limited.sku} and arrays.keys() == known_arrays.keys()
    taken = selectors.pack(selectors.make_metadata() | {"sku": limited.sku}, selectors.make_parts()[1])
    assert exact.read_base(taken, make_identity(H200.sku), H200, is_strict=False)[0]["ops"] == {}
    other = _C.Device.known(f"{H200.sku}-400w")
    assert exact.read_base(taken, make_identity(other.sku), other, is_strict=False)[0]["ops"] == {}


def test_models_and_doctor_name_the_artefact_that_the_board_uses(capsys, monkeypatch):
    assert models.find_model(BOARD.sku).sku == models.find_model("h100-500w").sku == MODEL.sku
    monkeypatch.setattr(_C, "get_device", lambda *_: BOARD)
    assert cli.run(["doctor", "--json"]) == 0
    found = {one["part"]: one["found"] for one in json.loads(capsys.readouterr().out)["findings"]}
    assert BOARD.sku in found["GPU"] and found["selector"].endswith(f"for {MODEL.sku}")


def test_a_calibrated_artefact_is_the_boards_alone_and_keeps_the_other_op_kinds(capsys, tmp_path, monkeypatch):
    board, worker = _C.Device.known(f"{H200.sku}-500w"), InProcessWorker()
    worker.backend.device = board
    monkeypatch.setattr(_C, "get_device", lambda *_: board)
    monkeypatch.setattr(sweep, "make_worker", lambda options: worker)
    pool = [_C.Problem(OP, m, n, k) for n, k in synthetic.SHAPES[1::8] for m in (4, 160, 1500)]
    monkeypatch.setattr(calibrate, "list_pool", lambda op: pool)
    monkeypatch.setattr(quick, "ROUND", 4)
    settings = Settings(trees=24, sizes=(8,))
    monkeypatch.setattr(calibrate, "Calibration", partial(quick.Calibration, settings=settings))
    monkeypatch.setattr(calibrate.Calibrator, "is_better", lambda self, calibration: True)
    before = selection.load_selector(board.sku).selector
    folders = ["--db", tmp_path / "t.db", "--out", tmp_path / "models", "--prior", synthetic.make_small_database()]
    options = ["--quick", "--backend", "simulated", "--json", "--time-budget", 0, "--op", OP]
    assert cli.run(["tune", *map(str, [*options, *folders])]) == 0
    report = json.loads(capsys.readouterr().out)
    path = tmp_path / "models" / f"{board.sku}.dgsel"
    assert report["sku"] == board.sku and report["artifact"] == str(path)
    after = Selector(path.read_bytes())
    assert (before.sku, after.sku) == (H200.sku, board.sku)
    assert after.metadata["ops"].keys() == before.metadata["ops"].keys()
    with Store.open(tmp_path / "t.db", "ro") as store:
        measured = [row.problem for row in store.load_best(sku=board.sku)]
        assert measured and not store.load_best(sku=H200.sku)
    choices = [after.choose(measured[0], device, "auto", kernel_hash(OP)) for device in (board, H200)]
    assert [choice.source for choice in choices] == ["exact", "analytic"]
    assert f"not {H200.sku}" in choices[1].reason
