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


def install(tmp_path, *blocks: tuple[dict, int], backend: str = "cuda") -> str:
    """Return what is installed of a database whose blocks have fields and the number of a winner each."""
    own = {"kernel_hash": selection.kernel_hash(PROBLEM.op)}
    with Store.open(tmp_path / "t.db") as store:
        context, problem_id = add_context(store), store.get_or_add_problem(PROBLEM)
        added = [add_block(store, context | own | fields, PROBLEM) for fields, _ in blocks]
        for (fields, number), block_id in zip(blocks, added, strict=True):
            config_id = store.get_or_add_config(PROBLEM.op, CONFIGS[number])
            told = {"problem_id": problem_id, "config_id": config_id, "tie_set": [config_id], "block_id": block_id}
            store.set_best(IDENTITY | own | told | {"regime": fields.get("regime", IDENTITY["regime"])})
    return tuned.install_best(PROBLEM, tmp_path / "t.db", tmp_path / "models", backend)["name"]


@pytest.mark.parametrize("newer", [{"regime": "simulated"}, {"regime": "graph-cold-skewed", "workload": SKEWED}])
def test_newer_winners_of_simulated_times_and_other_loads_are_passed_over(tmp_path, newer):
    assert DEVICE.sku == IDENTITY["sku"]
    assert install(tmp_path, ({}, 1), (newer, 0)) == str(CONFIGS[1])


def test_simulated_times_are_installed_where_they_are_asked_for(tmp_path):
    blocks = ({"regime": "simulated"}, 0), ({}, 1)
    assert install(tmp_path, *blocks, backend="simulated") == str(CONFIGS[0])
    (tmp_path / "other").mkdir()
    with pytest.raises(errors.InconclusiveError, match="nothing was measured"):
        install(tmp_path / "other", ({"regime": "simulated"}, 0))
