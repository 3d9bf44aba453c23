"""Training folders that others made: arrays and text, which are read or refused, and never run."""

import hashlib
import io
import json
import pickle

import joblib
import numpy as np
import pytest

from tests.fakes import synthetic
from tuner import errors
from tuner.learn import forest, learner, train
from tuner.learn.artifact import build_artifact

SETTINGS = learner.Settings(trees=6, leaves=8, sizes=(8,))


@pytest.fixture(scope="module")
def learned():
    return train.train(synthetic.make_small_dataset(), SETTINGS)


@pytest.fixture
def folder(tmp_path, learned):
    return synthetic.save_training(tmp_path / "training", learned, SETTINGS)


def replace_forest(folder, content):
    """Put another forest into the folder, with the hash that the folder names."""
    (folder / train.FOREST).write_bytes(content)
    record = json.loads((folder / train.TRAINING).read_text())
    record["estimator_sha256"] = hashlib.sha256(content).hexdigest()
    (folder / train.TRAINING).write_text(json.dumps(record))


class Intruder:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("writer", ["pickle", "joblib", "numpy"])
def test_a_folder_of_somebody_else_runs_no_code(tmp_path, folder, writer):
    intruder, stream = Intruder(tmp_path / "was here"), io.BytesIO()
    if writer == "pickle":
        pickle.dump(intruder, stream)
    elif writer == "joblib":
        joblib.dump(intruder, stream, compress=3)
    else:
        np.savez(stream, forest=np.array([intruder], object))
    replace_forest(folder, stream.getvalue())
    with pytest.raises(errors.IntegrityError, match="train again"):
        train.load(folder)
    assert not intruder.path.exists()


def change_node(arrays, name, place, value):
    arrays[name] = arrays[name].copy()
    arrays[name][place] = value


def find_inner(arrays):
    return int(np.flatnonzero(arrays["feature"] >= 0)[0])


def find_leaf(arrays):
    return int(np.flatnonzero(arrays["feature"] < 0)[0])


HOSTILE_TREES = {
    "a cycle": lambda it: change_node(it, "left", find_inner(it), find_inner(it)),
    "a child in another tree": lambda it: change_node(it, "right", find_inner(it), it["tree_start"][2]),
    "a child before all": lambda it: change_node(it, "left", find_inner(it), -5),
    "a feature too many": lambda it: change_node(it, "feature", find_inner(it), 4000),
    "a feature below all": lambda it: change_node(it, "feature", find_inner(it), -2),
    "a leaf without values": lambda it: change_node(it, "left", find_leaf(it), len(it["leaf_value"])),
    "a threshold that is no number": lambda it: change_node(it, "threshold", 0, np.nan),
    "an infinite value": lambda it: change_node(it, "leaf_value", 0, np.inf),
    "trees that overlap": lambda it: change_node(it, "tree_start", 1, 0),
    "trees beyond the nodes": lambda it: change_node(it, "tree_start", -1, len(it["feature"]) + 1),
    "an array too many": lambda it: it.update(golden_choice=np.zeros(1, np.int32)),
    "arrays of other lengths": lambda it: it.update(threshold=it["threshold"][:-1]),
    "another dtype": lambda it: it.update(left=it["left"].astype(np.float64)),
    "columns too many": lambda it: it.update(leaf_value=np.tile(it["leaf_value"][:, None], 2)),
}


@pytest.mark.parametrize("change", HOSTILE_TREES)
def test_a_hostile_forest_is_refused(folder, learned, change):
    arrays = learned.forest.to_arrays()
    HOSTILE_TREES[change](arrays)
    replace_forest(folder, build_artifact({}, arrays))
    with pytest.raises(errors.IntegrityError, match="train again"):
        train.load(folder)


def test_a_feature_that_equals_the_threshold_goes_left():
    leaf, no = np.array([0, 0, 1], np.int32), np.array([2, -1, -1], np.int32)
    tree = forest.Forest(
        tree_start=np.array([0, 3], np.int32),
        feature=np.array([0, -1, -1], np.int32),
        threshold=np.array([0.5, 0.0, 0.0]),
        left=np.where([True, False, False], 1, leaf).astype(np.int32),
        right=no,
        leaf_value=np.array([1.0, 2.0]),
    )
    assert tree.predict(np.array([[0.25], [0.5], [0.75]], np.float32)).tolist() == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("levels, is_read", [(31, True), (32, False)])
def test_trees_have_as_many_leaves_as_those_of_artefacts(levels, is_read):
    """Each level has one inner node, its left child a leaf."""
    inner = np.arange(2 * levels + 1) % 2 == 0
    inner[-1] = False
    index = np.arange(len(inner))
    chain = forest.Forest(
        np.array([0, len(inner)], np.int32),
        np.where(inner, 0, -1).astype(np.int32),
        np.zeros(len(inner)),
        np.where(inner, index + 1, 0).astype(np.int32),
        np.where(inner, index + 2, -1).astype(np.int32),
        np.ones(1),
    )
    content = forest.write_forest(chain)
    if is_read:
        assert forest.read_forest(content, 1).predict(np.ones((2, 1), np.float32)).tolist() == [1.0, 1.0]
    else:
        with pytest.raises(ValueError, match="more than 32 leaves"):
            forest.read_forest(content, 1)


@pytest.mark.parametrize(
    "place, value",
    [
        (("guards", "margin"), "0.01"),
        (("guards", "slack"), None),
        pytest.param(("guards", "slack"), 10**400, id="number beyond floats"),
        (("data", "models"), [7]),
        (("data", "variants"), {"default": "many"}),
        (("identity", "sku"), 7),
        (("settings", "sizes"), 8),
        (("feature_min",), ["x"]),
        pytest.param(("feature_min",), [10**400], id="numbers beyond floats"),
        (("newest_row",), 7),
        (("portfolio",), {}),
        (("settings", "trees"), "48"),
    ],
)
def test_a_record_of_other_types_is_refused(folder, place, value):
    record = json.loads((folder / train.TRAINING).read_text())
    target = record
    for name in place[:-1]:
        target = target[name]
    target[place[-1]] = value
    (folder / train.TRAINING).write_text(json.dumps(record))
    with pytest.raises(errors.IntegrityError, match="train again"):
        train.load(folder)


def test_a_record_that_nests_deeply_is_refused(folder):
    (folder / train.TRAINING).write_text("[" * 100_000)
    with pytest.raises(errors.IntegrityError, match="train again"):
        train.load(folder)


def test_a_folder_opens_no_connection_by_itself(learned, folder):
    train.save(folder, synthetic.make_small_dataset(), learned, SETTINGS, "postgresql://somewhere/else")
    with pytest.raises(errors.UsageError, match="--db"):
        train.load_with_data(folder, "")
