"""Where a selector comes from: the environment variables, which files are trusted, and one warning on refusal."""

import os
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

from deep_gemm import _C, models, selection, selector_files
from deep_gemm.errors import ArgumentError, DeviceError, SelectorWarning
from deep_gemm.selector import Selector
from tests.fakes.selectors import DEVICE, KERNEL_HASH, make_artifact, make_parts, make_problems, pack, private_models

OTHER = _C.Device.known("h20")
LIMITED = _C.Device.known(f"{DEVICE.sku}-500w")
SKU_FILE = f"{DEVICE.sku}.dgsel"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A private model folder, used by this process until the test ends."""
    path = tmp_path / "models"
    path.mkdir(mode=0o700)
    with private_models(monkeypatch, path):
        yield path


def install(path, content=None, mode=0o600):
    path.write_bytes(make_artifact() if content is None else content)
    path.chmod(mode)
    return path


def explain(problem=None, device=DEVICE):
    """Return the choice for the first training problem and the warnings that it caused."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        choice = selection.explain(problem or make_parts()[3][0], device)
    return choice, [warning for warning in caught if warning.category is SelectorWarning]


@pytest.mark.parametrize(
    "choose",
    [selection.get_best_config, selection.get_analytic_config, lambda *given: selection.explain(*given).config],
)
def test_a_device_may_be_named(folder, choose):
    problem = make_parts()[3][0]
    assert choose(problem, "h20") == choose(problem, OTHER.sku) == choose(problem, OTHER)
    with pytest.raises(DeviceError, match="'h999': not a known GPU; use one of h200"):
        choose(problem, "h999")
    with pytest.raises(ArgumentError, match="device = 5: must be a Device, its name or None; pass 'h200'"):
        choose(problem, 5)


@pytest.mark.filterwarnings("error::deep_gemm.errors.SelectorWarning")
@pytest.mark.parametrize("wrong", ["x", None, 5, {"op": "fp8_gemm"}])
def test_what_is_no_problem_is_no_fault_of_the_selector(folder, wrong):
    install(folder / SKU_FILE)
    for choose in (selection.get_best_config, selection.get_analytic_config, selection.explain, selection.choose):
        with pytest.raises(ArgumentError, match="problem = .*: must be a Problem; pass deep_gemm.Problem"):
            choose(wrong, DEVICE)
    assert not selection._has_warned, "the one warning is used up"


def test_no_artefact_is_silent_where_none_is_packaged(folder):
    choice, caught = explain(device=OTHER)
    assert (choice.source, choice.reason, caught) == ("analytic", f"no selector for {OTHER.sku}", [])
    assert selection.get_selector(OTHER) is None


def test_a_missing_packaged_artefact_is_said_once(folder, monkeypatch):
    choice, caught = explain()
    assert (choice.source, choice.reason) == ("analytic", f"no selector for {DEVICE.sku}")
    (message,) = [str(warning.message) for warning in caught]
    assert f"deep_gemm/models/{SKU_FILE}: no such file" in message and "install deep_gemm again" in message
    assert not explain(make_problems(1, seed=99)[0])[1]
    monkeypatch.setenv("DG_SELECTOR", "analytic")
    selection.forget_selectors()
    assert not explain()[1], "nobody asked for a selector"


def test_the_packaged_gpu_models_are_those_of_the_files():
    files = Path(models.__file__).parent.glob("*.dgsel")
    assert sorted(path.stem for path in files) == sorted(selector_files.PACKAGED_SKUS)


def test_model_folder(folder):
    install(folder / SKU_FILE)
    choice, caught = explain()
    assert choice.source == "exact" and not caught
    problem = make_parts()[3][0]
    assert selection.get_best_config(problem, DEVICE) == choice.config
    assert selection.get_analytic_config(problem, DEVICE) == _C.get_analytic_config(problem, DEVICE)
    assert selection.get_selector(DEVICE) is selection.get_selector(DEVICE) is not None


def test_packaged_artefact(folder, monkeypatch):
    monkeypatch.setattr(selector_files, "read_packaged_file", lambda sku: (sku, make_artifact()))
    assert explain()[0].source == "exact"


def test_path_and_modes(folder, monkeypatch):
    install(folder / SKU_FILE)
    elsewhere = install(folder / "mine.bin", pack(*make_parts()[:2]))
    for value, source in ((str(elsewhere), "exact"), ("auto", "exact"), ("model", "learned"), ("analytic", "analytic")):
        monkeypatch.setenv("DG_SELECTOR", value)
        selection.forget_selectors()
        choice, caught = explain()
        assert (choice.source, caught) == (source, [])


def test_a_process_keeps_its_artefact(folder):
    path = install(folder / SKU_FILE)
    before = explain()[0]
    path.unlink()
    assert str(explain()[0]) == str(before)


def refuse(folder, words: str) -> None:
    """Assert that the heuristic answers, with one warning that names the file and says `words`."""
    choice, caught = explain()
    assert (
        choice.source == "analytic" and len(caught) == 1 and words in str(caught[0].message) and words in choice.reason
    )
    assert choice.config == _C.get_analytic_config(make_parts()[3][0], DEVICE)
    assert not explain()[1] and not explain(make_problems(1, seed=99)[0])[1]


def test_corrupt_artefact(folder):
    path = install(folder / SKU_FILE, make_artifact()[:-1])
    refuse(folder, f"{path}: ")


def test_artefact_of_another_gpu(folder):
    install(folder / f"{OTHER.sku}.dgsel")
    with pytest.warns(SelectorWarning, match=f"is for {DEVICE.sku}, not {OTHER.sku}"):
        assert selection.explain(make_parts()[3][0], OTHER).source == "analytic"


def make_limited_artifact() -> bytes:
    """Return an artefact for LIMITED that differs from that of its model in its exact table, which is empty."""
    metadata, arrays, *_ = make_parts()
    empty = {"exact_key": np.empty(0, np.uint64), "exact_config": np.empty(0, np.int32)}
    return pack(metadata | {"sku": LIMITED.sku}, arrays | empty)


@pytest.mark.parametrize("is_packaged", [False, True])
def test_a_board_with_a_lower_power_limit_uses_the_artefact_of_its_model(folder, monkeypatch, is_packaged):
    if is_packaged:
        packaged = {DEVICE.sku: (SKU_FILE, make_artifact())}
        monkeypatch.setattr(selector_files, "read_packaged_file", packaged.get)
    else:
        install(folder / SKU_FILE)
    own, (choice, caught) = explain()[0], explain(device=LIMITED)
    assert choice.source == own.source == "exact" and choice.config == own.config and not caught
    assert selection.get_selector(LIMITED).sku == DEVICE.sku


def test_its_own_artefact_comes_first_and_is_for_it_alone(folder, monkeypatch):
    install(folder / SKU_FILE)
    monkeypatch.setattr(selector_files, "read_packaged_file", {LIMITED.sku: ("packaged", make_limited_artifact())}.get)
    assert explain(device=LIMITED)[0].source == "learned" and explain()[0].source == "exact"
    install(folder / f"{LIMITED.sku}.dgsel", make_limited_artifact())
    selection.forget_selectors()
    assert selection.load_selector(LIMITED.sku).file == str(folder / f"{LIMITED.sku}.dgsel")
    other = _C.Device.known(f"{DEVICE.sku}-400w")
    assert explain(device=other)[0].source == "exact"


@pytest.mark.parametrize("watts", ["", "-400w"])
def test_no_other_board_takes_the_artefact_of_a_lower_power_limit(folder, monkeypatch, watts):
    device = _C.Device.known(DEVICE.sku + watts)
    path = install(folder / "named.dgsel", make_limited_artifact())
    monkeypatch.setenv("DG_SELECTOR", str(path))
    words = f"{path}: is for {LIMITED.sku}, not {device.sku}; export one for this GPU model or remove the file"
    choice, caught = explain(device=device)
    assert choice.source == "analytic" and words in str(caught[0].message)
    assert Selector(make_limited_artifact()).choose(make_parts()[3][0], device).source == "analytic"
    selection.forget_selectors()
    assert explain(device=LIMITED)[0].source == "learned"


def test_a_missing_packaged_artefact_of_its_model_is_said(folder):
    choice, caught = explain(device=LIMITED)
    assert choice.reason == f"no selector for {LIMITED.sku}" and f"models/{SKU_FILE}: no such file" in str(caught[0])
    assert choice.config == _C.get_analytic_config(make_parts()[3][0], DEVICE)


def test_missing_path(folder, monkeypatch):
    monkeypatch.setenv("DG_SELECTOR", str(folder / "none.dgsel"))
    refuse(folder, "no such file")


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_file_writable_for_others(folder, mode):
    install(folder / SKU_FILE, mode=mode)
    refuse(folder, "is writable for others")


def test_folder_writable_for_others(folder):
    install(folder / SKU_FILE)
    folder.chmod(0o777)
    refuse(folder, "is writable for others")


def test_file_of_another_user(folder, monkeypatch):
    install(folder / SKU_FILE)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    refuse(folder, "belongs to user")


def test_symbolic_links(folder, tmp_path, monkeypatch):
    target = install(tmp_path / "target")
    (folder / SKU_FILE).symlink_to(target)
    refuse(folder, "without symbolic links")
    link = tmp_path / "link"
    link.symlink_to(folder)
    monkeypatch.setenv("DG_MODEL_DIR", str(link))
    selection.forget_selectors()
    refuse(folder, "without symbolic links")


def test_not_a_regular_file(folder):
    os.mkfifo(folder / SKU_FILE, 0o600)
    refuse(folder, "must be a regular file")


def test_oversized_file(folder):
    with open(folder / SKU_FILE, "wb") as stream:
        stream.truncate(2**31)
    refuse(folder, "at most 16777216 bytes")


def test_concurrent_first_use(folder):
    install(folder / SKU_FILE)
    found = []
    threads = [threading.Thread(target=lambda: found.append(selection.get_selector(DEVICE))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and all(selector is found[0] is not None for selector in found)


@pytest.mark.filterwarnings("ignore::deep_gemm.errors.SelectorWarning")
@pytest.mark.parametrize("choose", [selection.get_best_config, selection.get_analytic_config, selection.explain])
def test_without_a_driver_the_remedy_is_a_device(folder, monkeypatch, choose):
    def refuse():
        raise DeviceError(
            "no CUDA driver: libcuda.so.1: cannot open; install the NVIDIA driver, or pass CPU tensors to run the"
            " reference."
        )

    monkeypatch.setattr(_C, "get_device", refuse)
    problem = make_parts()[3][0]
    with pytest.raises(
        DeviceError, match=r"no CUDA driver: .*cannot open; pass device=deep_gemm\.Device\.known\('h200'\)"
    ) as caught:
        choose(problem)
    assert "CPU tensors" not in str(caught.value)
    choose(problem, DEVICE)


class Stub:
    """A selector that answers with one config and keeps what it was asked."""

    def __init__(self, config, ops=("fp8_gemm",)):
        self.config, self.metadata, self.asked = config, {"ops": dict.fromkeys(ops)}, []

    def choose(self, *asked):
        self.asked.append(asked)
        return _C.Choice(self.config, "learned", "")


def use(monkeypatch, selector) -> None:
    """Let the library use a selector."""
    monkeypatch.setitem(selection._loaded, DEVICE.sku, selection.LoadedSelector("auto", selector, "stub.dgsel", ""))


def test_an_illegal_choice_is_the_heuristics(folder, monkeypatch):
    problem = make_parts()[3][0]
    use(monkeypatch, Stub(_C.Config(block_m=1, block_n=1, block_k=1, num_stages=1)))
    choice, caught = explain(problem)
    assert choice.source == "analytic" and choice.config == _C.get_analytic_config(problem, DEVICE)
    assert "illegal config" in choice.reason and len(caught) == 1


def test_a_selector_is_told_which_kernels_will_run(folder, monkeypatch):
    problem = make_parts()[3][0]
    stub = Stub(_C.get_analytic_config(problem, DEVICE))
    use(monkeypatch, stub)
    assert explain(problem)[0].source == "learned" and stub.asked == [(problem, DEVICE, "auto", KERNEL_HASH)]


def test_a_sibling_serves_an_op_kind_that_is_missing(folder):
    op = "m_grouped_fp8_gemm_psum"
    sibling = selection.OP_KINDS[op].sibling
    assert selection.find_recorded_op(op, Stub(None, (sibling,))) == sibling != op
    assert selection.find_recorded_op(op, Stub(None, (sibling, op))) == op == selection.find_recorded_op(op, Stub(None))


def test_no_legal_config_is_the_devices_error_and_no_selectors(folder):
    install(folder / SKU_FILE)
    ampere = _C.Device(**DEVICE.as_dict() | {"compute_capability": (8, 0)})
    with warnings.catch_warnings():
        warnings.simplefilter("error", SelectorWarning)
        with pytest.raises(DeviceError, match="no config is legal"):
            selection.get_best_config(make_parts()[3][30], ampere)


@pytest.mark.parametrize("sku", selector_files.PACKAGED_SKUS)
def test_the_packaged_artefacts_are_of_this_heuristic_and_these_features(sku):
    """Of others the library uses the exact tables alone, and warns."""
    metadata = selection.load_selector(sku).selector.metadata
    assert metadata["heuristic_version"] == _C.heuristic_version(sku), "train and export it again"
    assert metadata["features_version"] == _C.FEATURES_VERSION
