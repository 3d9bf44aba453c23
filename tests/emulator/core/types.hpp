// Integers and indices of the emulator.
#pragma once

#include <cstdint>

namespace emulator {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using i64 = int64_t;

struct Index {
    u32 x = 0, y = 0, z = 0;
};

// What a thread of a kernel knows of its place.
struct Coordinates {
    Index thread, block, block_dims, grid;
};

extern const Coordinates* here;  // of the thread that runs

}  // namespace emulator
