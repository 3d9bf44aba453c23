"""Power of single configs: by ticks of the energy counter, else by readings of power, while the device never idles."""

import ctypes
import itertools
from dataclasses import replace

import pytest

from deep_gemm import _C
from tests.fakes.cuda_backend import FakeClock, FakeEvent, FakeKernel
from tuner.measure import backend as measure
from tuner.measure import load, power, telemetry
from tuner.measure.power import AVERAGED_S, WARM_UP_S, PowerMeter, PowerUnknown
from tuner.measure.protocol import make_job
from tuner.measure.race import ReferenceFailed
from tuner.search import energy
from tuner.search.problem_run import EFFORTS

PROBLEM = _C.Problem("fp8_gemm", 70, 136, 272)
CONFIGS = _C.get_candidates(PROBLEM, _C.Device.known("h200"))[:3]
PLAN = energy.make_plan(EFFORTS["quick"])


class Board:
    """A board of constant power in a time of its own, whose counter has a new value every `tick_s`."""

    is_open, tick_s = True, 0.1

    def __init__(self, watts=500.0, has_counter=True, has_power=True):
        self.watts, self.has_counter, self.has_power, self.now_s, self.asked = watts, has_counter, has_power, 3.217, []

    def now(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds

    def energy_mj(self):
        return int(1e3 * self.watts * (self.now_s // self.tick_s) * self.tick_s) if self.has_counter else None

    def power_w(self):
        self.asked.append(self.now_s)
        return self.watts if self.has_power else None

    def clock_mhz(self):
        return 1700

    def power_limit_w(self):
        return 700.0

    def driver_version(self):
        return "fake"

    def read(self):
        return {"clock_mhz": 1, "power_w": 1.0, "throttle": 0}


COUNTED_W, READ_W = 500.0, 430.0


class DisagreeingBoard(Board):
    """A board whose readings of power are lower than what its counter says."""

    def power_w(self):
        return super().power_w() and READ_W


class SteadyLoad:
    """A load that counts how often it is fed."""

    def __init__(self):
        self.calls = []

    def feed(self):
        self.calls.append("feed")

    def start(self):
        self.calls.append("start")

    def stop(self):
        self.calls.append("stop")
        return 12.5


def make_meter(board):
    return PowerMeter(board, board.now, board.sleep)


def test_a_window_begins_and_ends_at_ticks():
    board, fed = Board(), SteadyLoad()
    began = board.now_s
    draw = make_meter(board).measure(fed, 0.25)
    assert draw == pytest.approx((500.0, 1700.0, 12.5), rel=2 * power.POLL_S / 0.25)
    assert not board.asked  # the readings of a board with a counter are not needed
    assert WARM_UP_S + 0.25 < board.now_s - began < WARM_UP_S + 0.25 + 2 * board.tick_s + 0.02
    feeds = fed.calls.index("start"), fed.calls.index("stop")
    assert feeds[0] > WARM_UP_S / power.POLL_S * 0.9 and feeds[1] - feeds[0] > 0.25 / power.POLL_S * 0.9


def test_without_a_counter_readings_are_averaged_after_what_they_reach_back_to():
    board = Board(321.0, has_counter=False)
    began = board.now_s
    assert make_meter(board).measure(SteadyLoad(), 0.25)[0] == pytest.approx(321.0)
    asked = [at for at in board.asked if at > began]
    assert len(asked) > 5 and min(asked) >= began + AVERAGED_S + WARM_UP_S - 1e-6


def read_watts(meter):
    """Return the watts of a load, rounded to 10."""
    return round(meter.measure(SteadyLoad(), 0.25).power_w, -1)


def test_a_counter_that_stands_still_is_given_up_for_the_block():
    board = DisagreeingBoard()
    board.tick_s = 1e9
    meter = make_meter(board)
    assert read_watts(meter) == READ_W
    began, board.tick_s = board.now_s, Board.tick_s
    assert read_watts(meter) == READ_W
    assert board.now_s - began < WARM_UP_S + AVERAGED_S + 0.25 + 0.1 < began
    meter.start_block()
    assert read_watts(meter) == COUNTED_W


def test_a_counter_that_misses_a_tick_leaves_one_load_without_power():
    board = DisagreeingBoard()
    meter = make_meter(board)
    assert read_watts(meter) == COUNTED_W
    board.tick_s = 1e9
    with pytest.raises(PowerUnknown, match="showed nothing new"):
        read_watts(meter)
    board.tick_s = Board.tick_s
    assert read_watts(meter) == COUNTED_W and not board.asked
    board.tick_s = 1e9
    meter.start_block()
    assert read_watts(meter) == READ_W


def test_a_way_that_gives_no_power_is_not_kept():
    board = DisagreeingBoard(has_counter=False, has_power=False)
    meter = make_meter(board)
    with pytest.raises(PowerUnknown, match="no power while"):
        read_watts(meter)
    board.has_counter = True
    assert read_watts(meter) == COUNTED_W


def test_a_board_without_readings_is_named_as_such():
    board = Board(has_counter=False, has_power=False)
    with pytest.raises(PowerUnknown, match="neither energy nor power: the board has no such reading.*without --energy"):
        make_meter(board).start_block()
    board.is_open = False
    with pytest.raises(PowerUnknown, match=r"libnvidia-ml\.so\.1 was not found"):
        make_meter(board).start_block()
    fed = SteadyLoad()
    with pytest.raises(PowerUnknown, match="no power while"):
        make_meter(board).measure(fed, 0.25)
    assert fed.calls[-1] == "stop"
    with pytest.raises(PowerUnknown, match="not above 0"):
        make_meter(Board(0.0, has_counter=False)).measure(fed, 0.25)


def test_telemetry_asks_nvml_with_the_types_of_its_header(monkeypatch):
    class Library:
        """NVML with an energy counter of more than 32 bits, and no clock."""

        def __getattr__(self, name):
            if name == "nvmlDeviceGetClockInfo":
                raise AttributeError(name)
            return getattr(type(self), "_" + name, lambda *arguments: 0)

        @staticmethod
        def _nvmlDeviceGetTotalEnergyConsumption(device, value):
            ctypes.cast(value, ctypes.POINTER(ctypes.c_ulonglong))[0] = 1 << 40
            return 0

        @staticmethod
        def _nvmlDeviceGetPowerUsage(device, value):
            ctypes.cast(value, ctypes.POINTER(ctypes.c_uint))[0] = 456_789
            return 0

    monkeypatch.setattr(telemetry.ctypes, "CDLL", lambda name: Library())
    found = telemetry.Telemetry("GPU-x")
    assert found.is_open and (found.energy_mj(), found.power_w(), found.clock_mhz()) == (1 << 40, 456.789, None)
    assert found.read() == {"clock_mhz": None, "power_w": 456.789, "throttle": 0}


@pytest.fixture
def metered(backend, monkeypatch):
    """The backend on fakes with a board whose power is the number of the config that ran last."""
    board = Board()
    backend.telemetry, backend.meter = board, make_meter(board)
    monkeypatch.setattr(FakeEvent, "query", lambda self: FakeClock.now_us - self.at_us > 10_000.0)
    return backend, board


def run(backend, configs=CONFIGS):
    stages = []
    job = make_job(PROBLEM, configs, [], PLAN, 1)
    return backend.run(job, lambda stage, config: stages.append((stage, config))), stages


def test_a_job_of_energy_on_the_device(metered):
    backend, _ = metered
    FakeKernel.times_us = dict(zip(CONFIGS, (100.0, 80.0, 300.0), strict=True))
    report, stages = run(backend)
    rows = report["results"]
    assert [(row["role"], row["status"], row["num_samples"]) for row in rows] == [("confirm", "ok", 2)] * 3
    assert [row["median_us"] for row in rows] == pytest.approx([100.0, 80.0, 300.0])
    assert [row["ratio"] for row in rows] == pytest.approx([1.0, 0.8, 3.0])
    assert [row["power_w"] for row in rows] == pytest.approx([500.0] * 3, rel=0.02)
    assert [config for stage, config in stages if stage == "energy"] == [0, 1, 2, 2, 1, 0]
    assert (report["confirm_rounds"], report["reference_us"]) == (2, pytest.approx(100.0)) and report["noise"] < 0.02


def test_a_board_without_readings_launches_nothing_and_says_why(metered):
    backend, board = metered
    board.has_counter = board.has_power = False
    report, stages = run(backend)
    assert {stage for stage, _ in stages} == {"setup"} and report["reference_us"] is report["noise"] is None
    assert all(row["status"] == "skipped" and "neither" in row["error"] for row in report["results"])


def test_wrong_configs_have_no_energy_and_a_wrong_reference_stops_the_job(metered):
    backend, _ = metered

    def spoil(kernel, d, operands):
        d.fill_(3.0)
        return True

    FakeKernel.faults = {CONFIGS[1]: spoil}
    rows = run(backend)[0]["results"]
    assert [(row["role"], row["status"]) for row in rows] == [
        ("confirm", "ok"), ("search", "incorrect"), ("confirm", "ok")
    ]  # fmt: skip
    FakeKernel.faults = {CONFIGS[0]: spoil}
    with pytest.raises(ReferenceFailed):
        run(backend)


def test_a_reading_that_fails_on_the_way_costs_one_config(metered):
    backend, _ = metered
    real, turns = backend.meter.measure, []

    def fail_once(fed, seconds):
        turns.append(fed)
        if len(turns) == 1:
            raise PowerUnknown("planted")
        return real(fed, seconds)

    backend.meter.measure = fail_once
    rows = run(backend)[0]["results"]
    assert [(row["status"], row.get("error"), row.get("ratio")) for row in rows] == [
        ("skipped", "planted", None), ("ok", None, None), ("ok", None, None)
    ]  # fmt: skip
    assert len(turns) == 5  # the first config has no second turn


def test_a_missed_tick_costs_one_config_and_the_next_block_nothing(metered):
    """The reading that stands in for the counter in other blocks is not mixed in."""
    backend, board = metered
    real, turns = backend.meter.run, []

    def miss_a_tick(fed, seconds, *sample):
        turns.append(seconds)
        board.tick_s = 1e9 if len(turns) == 3 else Board.tick_s  # two runs a config: the second one's warm-up
        return real(fed, seconds, *sample)

    backend.meter.run = miss_a_tick
    rows = run(backend)[0]["results"]
    assert [row["status"] for row in rows] == ["ok", "skipped", "ok"] and not board.asked
    assert "showed nothing new" in rows[1]["error"] and rows[1].get("power_w") is None
    assert [row["status"] for row in run(backend)[0]["results"]] == ["ok"] * 3 and not board.asked


def test_a_load_goes_through_the_ring_and_stays_ahead(metered):
    backend, _ = metered
    FakeKernel.times_us = dict.fromkeys(CONFIGS, 600.0)  # one launch a replay
    job = measure.parse_job(make_job(PROBLEM, CONFIGS, [], PLAN, 1))
    timer = backend.make_timer(job)
    for index in range(2):
        timer.check(index)
        timer.prepare(index)
    FakeKernel.sets_seen.clear()
    fed = load.GraphLoad(timer, 1)
    seen = FakeKernel.sets_seen[CONFIGS[1]]
    assert len(fed.graphs) == len(timer.ring) and len(set(seen)) == len(seen) == len(timer.ring) - 1
    before = FakeClock.now_us
    fed.feed()
    assert FakeClock.now_us - before >= load.AHEAD_US * 0.8 and len(fed.queued) == fed.parts
    fed.start()
    for _ in range(20):
        fed.feed()
    assert fed.stop() == pytest.approx(600.0) and fed.stop() == 0.0


def test_each_part_of_a_confirmation_begins_at_another_set(metered):
    backend, _ = metered
    FakeKernel.times_us = dict.fromkeys(CONFIGS, 600.0)  # one launch a replay
    timer = backend.make_timer(measure.parse_job(make_job(PROBLEM, CONFIGS, [], replace(PLAN, confirm_parts=3), 1)))
    begun = []
    for part in range(3):
        timer.check(0)
        FakeKernel.sets_seen.clear()
        timer.prepare(0, part)
        begun.append(FakeKernel.sets_seen[CONFIGS[0]][0])
    assert len(timer.ring) >= 3 and len(set(begun)) == 3
    for ring, count in itertools.product(range(3, 40), range(1, 60)):  # whatever the launches of a replay
        assert len({(count + measure.find_shift(part, 3, ring)) % ring for part in range(3)}) == 3
    assert [measure.find_shift(part, 3, 1) % 1 for part in range(3)] == [0, 0, 0]


def test_a_driver_error_is_blamed_on_its_config(metered, monkeypatch):
    backend, _ = metered
    monkeypatch.setattr(load.GraphLoad, "feed", lambda self: (_ for _ in ()).throw(RuntimeError("illegal address")))
    with pytest.raises(measure.DeviceFault, match="illegal address") as caught:
        run(backend)
    assert caught.value.config == 0
