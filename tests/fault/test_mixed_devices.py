"""Rows of several GPU models in one database: refused without a name, and never pooled into one table or artefact."""

import pytest

from deep_gemm import _C
from tests.fakes import synthetic
from tests.fakes.databases import add_context, make_problem, memory_folder
from tuner import cli, errors
from tuner.db import Store
from tuner.learn.dataset import load_dataset
from tuner.learn.sources import find_device

NUM_PROBLEMS = 4
H200 = _C.Device.known("h200")
#: Another model, and another SM count of the same one.
OTHERS = {
    "another model": {"name": "NVIDIA H100 80GB HBM3", "sku": "nvidia-h100-sm132"},
    "a part of the same model": {"sku": "nvidia-h200-sm114", "sm_count": 114},
}


def add_rows(store: Store, first_m: int, **fields) -> None:
    """Add problems measured on a board of an H200 with other `fields`."""
    context = add_context(store)
    board = H200.as_dict() | {"uuid": f"GPU-{sorted(fields.items())}"} | fields
    shared = {name: context[name] for name in ("environment_id", "sweep_id")}
    shared["device_id"] = store.get_or_add_device(board)
    machine = synthetic.Machine()
    for m in range(first_m, first_m + NUM_PROBLEMS):
        problem = make_problem(m)
        synthetic.write_block(store, machine.measure(problem, _C.get_candidates(problem, H200)[::20]), shared)


@pytest.fixture(params=OTHERS, scope="module")
def mixed(request, tmp_path_factory):
    """A database with 1..4 rows measured on an H200 and 11..14 on another GPU, and the other's SKU."""
    with memory_folder(tmp_path_factory.mktemp("mixed")) as folder:
        path = folder / "tuning.db"
        with Store.open(path) as store:
            add_rows(store, 1)
            add_rows(store, 11, **OTHERS[request.param])
        yield path, OTHERS[request.param]["sku"]


@pytest.mark.usefixtures("few_sources")
@pytest.mark.parametrize("command", [["train"], ["db", "audit"], ["inspect"]])
def test_no_command_reads_several_models_together(mixed, tmp_path, capsys, command):
    path, other = mixed
    out = ["--out", str(tmp_path / "training")] if command == ["train"] else []
    assert cli.run([*command, "--db", str(path), *out]) == errors.EXIT_USAGE
    said = capsys.readouterr().err
    assert not (tmp_path / "training").exists()
    assert "2 GPU models" in said and other in said and H200.sku in said and "name one" in said


def test_a_table_holds_the_rows_of_its_model_alone(mixed):
    path, other = mixed
    with Store.open(path, "ro") as store:
        assert sorted(problem.m for problem in load_dataset(store, H200.sku).problems) == [1, 2, 3, 4]
        rows = store.load_measurements()
        assert {row.block.sku for row in rows if row.block.problem.m > 10} == {other}
        with pytest.raises(errors.UsageError):
            find_device(store, "")
