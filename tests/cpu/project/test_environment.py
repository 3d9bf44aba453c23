"""Reading of environment variables: what switches on, and names that are nearly right."""

import warnings

import pytest

from deep_gemm import environment, selector_files
from deep_gemm.errors import ModelError


@pytest.fixture(autouse=True)
def fresh():
    """Let the warning come again."""
    environment.warn_of_misspelt.cache_clear()
    yield
    environment.warn_of_misspelt.cache_clear()


def test_a_misspelt_variable_is_named_once(monkeypatch):
    monkeypatch.setenv("DG_SELECTER", "analytic")
    with pytest.warns(UserWarning, match="DG_SELECTER: no such variable.*did you mean DG_SELECTOR"):
        environment.get_string("DG_SELECTOR")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment.get_string("DG_SELECTOR")


@pytest.mark.parametrize("name", ["DG_JIT_DUMP_SASS", "DG_JIT_PTXAS_CHECK", "DG_JIT_CPP_STANDARD", "DG_LOCAL_DEBUG"])
def test_names_of_other_packages_are_left_alone(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    assert name not in environment.find_misspelt()


@pytest.mark.parametrize(
    ("value", "is_on"), [("1", True), ("on", True), ("x", True), ("0", False), ("No", False), ("OFF", False)]
)
def test_words_that_switch_off(monkeypatch, value, is_on):
    monkeypatch.setenv("DG_BATCH_INVARIANT", value)
    assert environment.is_enabled("DG_BATCH_INVARIANT") is is_on


def test_a_mistyped_selector_is_told_the_words(tmp_path):
    with pytest.raises(ModelError, match="set DG_SELECTOR to auto, model, analytic, or the path of an artefact"):
        selector_files.read_selector_file("nvidia-h200-sm132", tmp_path / "analytics")
