// The power limit of a board, asked of NVML, the driver's library for managing GPUs (libnvidia-ml.so.1).
#pragma once

#include <string>

namespace deep_gemm {

// What the SKU of the board at this PCI address ends with (core/device.hpp, power_suffix). "" wherever NVML is missing,
// fails or does not answer in time: then the board has the SKU of its model. Opens NVML at the first call and keeps it
// open; never throws. The GIL must be held.
std::string read_power_suffix(const std::string& bus_id);

}  // namespace deep_gemm
