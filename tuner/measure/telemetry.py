"""Read clocks, power and throttle reasons through NVML, the driver's own library. Nothing is ever changed.

Every reading is optional: without NVML, or without a counter, its value is None and measuring goes on.
"""

import ctypes

SM_CLOCK = 1  # nvmlClockType_t NVML_CLOCK_SM


class Telemetry:
    """Readings of the GPU with this UUID ("GPU-...")."""

    def __init__(self, uuid: str):
        self.library, self.device = None, ctypes.c_void_p()
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if (
                library.nvmlInit_v2() == 0
                and library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self.device)) == 0
            ):
                self.library = library
        except (OSError, AttributeError):
            pass

    @property
    def is_open(self) -> bool:
        """Return whether NVML was found, and knows the GPU."""
        return self.library is not None

    def read(self) -> dict:
        """Return {"clock_mhz", "power_w", "throttle"}; a value that cannot be read is None."""
        return {
            "clock_mhz": self.clock_mhz(),
            "power_w": self.power_w(),
            "throttle": self.ask("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong),
        }

    def clock_mhz(self) -> int | None:
        """Return the clock of the SMs in MHz."""
        return self.ask("nvmlDeviceGetClockInfo", ctypes.c_uint, ctypes.c_uint(SM_CLOCK))

    def power_w(self) -> float | None:
        """Return the board's power in watts: from Ampere on, but for the A100, the mean of the last second."""
        power_mw = self.ask("nvmlDeviceGetPowerUsage", ctypes.c_uint)
        return None if power_mw is None else power_mw / 1e3

    def energy_mj(self) -> int | None:
        """Return the board's energy in millijoules since the driver was loaded; refreshed every some tens of ms."""
        return self.ask("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong)

    def power_limit_w(self) -> float | None:
        """Return the enforced power limit in watts."""
        limit_mw = self.ask("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint)
        return None if limit_mw is None else limit_mw / 1e3

    def driver_version(self) -> str | None:
        """Return the driver's version, such as "580.159.04"."""
        text = ctypes.create_string_buffer(96)
        if self.library is None or self.library.nvmlSystemGetDriverVersion(text, len(text)) != 0:
            return None
        return text.value.decode("ascii", "replace")

    def ask(self, function: str, kind: type, *arguments) -> int | None:
        """Call the NVML getter `function(device, *arguments, &value)` and return the value, None where it fails."""
        value = kind()
        call = getattr(self.library, function, None) if self.library is not None else None
        return value.value if call is not None and call(self.device, *arguments, ctypes.byref(value)) == 0 else None
