"""How the board is doing: a product of known speed, and one of known result."""

import time

import torch

#: m, n and k of the anchor, and how often a window launches it.
SIZE = 4096
LAUNCHES = 8
#: A value serves for so long.
INTERVAL_S = 1.0
#: A board is warm when windows agree so well, or after so many seconds.
STEADY_LIMIT_S = 2.0
STEADY_TOLERANCE = 0.005


class Anchor:
    """A fixed product of the vendor's library (BF16, m = n = k = 4096), timed about once a second.

    Its times show how the board drifts.
    """

    def __init__(self, device: str):
        generator = torch.Generator(device=device).manual_seed(0)
        self.a, self.b = (torch.randn(SIZE, SIZE, generator=generator, device=device).bfloat16() for _ in range(2))
        self.d = torch.empty_like(self.a)
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self.value_us: float | None = None
        self.read_at, self.is_warm = 0.0, False

    def run_window(self) -> float:
        """Return the mean microseconds of one product over a window of LAUNCHES."""
        self.events[0].record()
        for _ in range(LAUNCHES):
            torch.mm(self.a, self.b, out=self.d)
        self.events[1].record()
        self.events[1].synchronize()
        return self.events[0].elapsed_time(self.events[1]) * 1e3 / LAUNCHES

    def warm_up(self) -> None:
        """Once per process, run windows until three in a row agree within STEADY_TOLERANCE or time is over."""
        last: list[float] = []
        end = time.monotonic() + STEADY_LIMIT_S
        while not self.is_warm and time.monotonic() < end:
            last = [*last[-2:], self.run_window()]
            self.is_warm = len(last) == 3 and max(last) <= min(last) * (1.0 + STEADY_TOLERANCE)
        self.is_warm = True

    def read(self) -> float:
        """Return the anchor's time in microseconds, measured at most INTERVAL_S ago."""
        if self.value_us is None or time.monotonic() - self.read_at > INTERVAL_S:
            self.value_us, self.read_at = self.run_window(), time.monotonic()
        return self.value_us


def check_canary(device: str) -> None:
    """Multiply small integers on the device. Raises: RuntimeError where the product is wrong."""
    a = (torch.arange(256 * 256, device=device).view(256, 256) % 7 - 3).float()
    if not torch.equal((a @ a).cpu(), a.cpu() @ a.cpu()):
        raise RuntimeError("the canary product is wrong: this device cannot be trusted")
