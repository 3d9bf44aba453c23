"""What `tune` and `refine` install: the winner of times that the library may go by."""

import pytest

from deep_gemm import _C, selection
from tests.fakes.databases import CONFIGS, DEVICE, IDENTITY, add_block, add_context
from tuner import errors
from tuner.db import Store
from tuner.ship import tuned

PROBLEM = _C.Problem("fp8_gemm", 64, 2112, 7168)
SKEWED = '{"seed":0,"sizes":"skewed"}'


@pytest.fixture(autouse=True)
def without_artefact(own_home, monkeypatch):
    """Install into an artefact of its own: a full one may have no room for a winner."""
    monkeypatch.setattr(tuned, "read_base", lambda sku, path: None)


def without(fields: dict, name: str) -> dict:
    """Return the fields but one."""
    return {key: value for key, value in fields.items() if key != name}


def install(tmp_path, *blocks: tuple[dict, int], backend: str = "cuda", sku: str = DEVICE.sku) -> dict:
    """Install for a GPU model of a database whose blocks have fields, perhaps a SKU, and the number of a winner each;
    return what was done.
    """
    own = {"kernel_hash": selection.kernel_hash(PROBLEM.op)}
    with Store.open(tmp_path / "t.db") as store:
        context, problem_id = add_context(store) | own, store.get_or_add_problem(PROBLEM)
        boards = {DEVICE.sku: context["device_id"]}
        for other in {fields.get("sku", DEVICE.sku) for fields, _ in blocks} - boards.keys():
            boards[other] = store.get_or_add_device(_C.Device.known(other).as_dict())
        told = [{"sku": DEVICE.sku, "regime": IDENTITY["regime"]} | fields for fields, _ in blocks]
        added = [
            add_block(store, context | {"device_id": boards[of["sku"]]} | without(of, "sku"), PROBLEM) for of in told
        ]
        for of, (_, number), block_id in zip(told, blocks, added, strict=True):
            config_id = store.get_or_add_config(PROBLEM.op, CONFIGS[number])
            found = {"problem_id": problem_id, "config_id": config_id, "tie_set": [config_id], "block_id": block_id}
            store.set_best(IDENTITY | own | found | {"sku": of["sku"], "regime": of["regime"]})
    return tuned.install_best(PROBLEM, tmp_path / "t.db", tmp_path / "models", sku, backend)


@pytest.mark.parametrize("newer", [{"regime": "simulated"}, {"regime": "graph-cold-skewed", "workload": SKEWED}])
def test_newer_winners_of_simulated_times_and_other_loads_are_passed_over(tmp_path, newer):
    assert DEVICE.sku == IDENTITY["sku"]
    assert install(tmp_path, ({}, 1), (newer, 0))["name"] == str(CONFIGS[1])


@pytest.mark.parametrize("other", [_C.Device.known("h100").sku, f"{DEVICE.sku}-500w"])
def test_a_newer_winner_of_another_gpu_model_or_power_limit_is_passed_over(tmp_path, other):
    found = install(tmp_path, ({}, 1), ({"sku": other}, 0))
    assert (found["sku"], found["name"]) == (DEVICE.sku, str(CONFIGS[1]))
    assert [path.name for path in (tmp_path / "models").glob("*.dgsel")] == [f"{DEVICE.sku}.dgsel"]
    with pytest.raises(errors.InconclusiveError, match="nothing was measured on nvidia-h20-"):
        tuned.install_best(PROBLEM, tmp_path / "t.db", tmp_path / "models", _C.Device.known("h20").sku)


def test_simulated_times_are_installed_where_they_are_asked_for(tmp_path):
    blocks = ({"regime": "simulated"}, 0), ({}, 1)
    assert install(tmp_path, *blocks, backend="simulated")["name"] == str(CONFIGS[0])
    (tmp_path / "other").mkdir()
    with pytest.raises(errors.InconclusiveError, match="nothing was measured"):
        install(tmp_path / "other", ({"regime": "simulated"}, 0))
