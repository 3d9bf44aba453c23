"""What the library chooses by an exported artefact is what validation chose in Python."""

import numpy as np

from deep_gemm import _C
from deep_gemm.selector import Selector
from tests.cpu.tuner.ship.test_export import GOOD, SETTINGS, SKU, write_evaluation
from tests.fakes import synthetic
from tuner.learn import learner, residual, train
from tuner.learn.dataset import build_dataset
from tuner.search.wide_space import get_loop_space
from tuner.ship import export


def test_the_native_walk_agrees_on_every_problem(tmp_path):
    """On problems that were swept with the knobs of the main loop: the table has all that the trees are asked about."""
    rows = synthetic.full_rows(synthetic.Machine(seed=1), synthetic.FEW_SHAPES, synthetic.FEW_M, get_loop_space)
    data, folder = build_dataset(rows, synthetic.IDENTITY, _C.Device.known(SKU)), tmp_path / "fp8_gemm"
    train.save(folder, data, train.train(data, SETTINGS), SETTINGS, "none")
    write_evaluation(folder, GOOD)
    found = train.load(folder)
    result = export.make_export([(found, data)])
    selector = Selector(result.content)
    assert selector.replay_golden() == 0 and result.contents.ops["fp8_gemm"].golden >= 200
    record, rows = found.record, residual.make_config_rows(data)
    learned = learner.Learned(None, found.forest, record.guards, record.feature_min, record.feature_max)
    knobbed = 0
    for row, problem in enumerate(data.problems):
        shortlist = _C.get_shortlist(problem, data.device, _C.NUM_RANKED)
        assert (rows.of(np.array([row])).place != residual.UNRANKED).sum() == len(shortlist)
        column = learner.choose(data, np.array([row]), learned, rows).column[0]
        choice = selector.choose(problem, data.device, "model")
        assert choice.source == "learned" and choice.config == data.configs[column]
        knobbed += choice.config != _C.without_loop_knobs(choice.config)
    assert len(data.problems) == 24 and knobbed > 5
