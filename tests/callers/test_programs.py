"""The programs on the CPU, where the ops are their references."""

import pytest

from tests.callers import run
from tests.callers.programs import PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    PROGRAMS[name]("cpu")


def test_without_a_gpu_the_run_says_so_at_once(monkeypatch, capsys):
    monkeypatch.setattr(run.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(run, "run_program", lambda name: pytest.fail("a program was run"))
    with pytest.raises(SystemExit) as caught:
        run.main([])
    assert caught.value.code == 2 and "no GPU is visible; `python -m pytest tests/callers`" in capsys.readouterr().err
