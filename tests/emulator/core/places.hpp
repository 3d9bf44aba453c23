// Names of places in the kernel, for reports.
#pragma once

#include <string>

namespace emulator {

// The inlined calls that lead to an address in the kernel's library, innermost first, a line each.
std::string describe_place(void* address);

}  // namespace emulator
