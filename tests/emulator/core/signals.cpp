// Additions to global memory, and a watch over counters of rows of D that are stored (sm90/epilogue/signals.cuh): one
// that becomes complete before its rows are stored ends the launch.
#include <cstring>

#include "instruction.hpp"
#include "instructions.hpp"

namespace emulator {
namespace {

constexpr u32 kBlockRows = 64;

// D holds ones in every bit where nothing has been stored. Pitches are in bytes.
struct Watch {
    const u32* counters;
    u64 blocks;  // of a group
    u32 threshold;
    const int32_t* sizes;
    const u8* d;
    u64 group_pitch, row_pitch;
    u32 groups, rows, columns, element;
} watch;

bool is_stored(const u8* element) {
    static constexpr u8 kOnes[] = {0xff, 0xff, 0xff, 0xff};
    return std::memcmp(element, kOnes, watch.element) != 0;
}

void check_rows(u64 group, u64 block) {
    for (u64 row = block * kBlockRows; row < (block + 1) * kBlockRows && i64(row) < watch.sizes[group]; ++row)
        for (u32 column = 0; row < watch.rows && column < watch.columns; ++column)
            if (!is_stored(watch.d + group * watch.group_pitch + row * watch.row_pitch + column * watch.element))
                throw "a signal is complete before row " + std::to_string(row) + ", column " + std::to_string(column) +
                    " of group " + std::to_string(group) + " is stored";
}

void check_counter(const u32* counter) {
    const u64 index = u64(counter - watch.counters);
    if (watch.counters == nullptr || counter < watch.counters || index >= watch.groups * watch.blocks)
        throw std::string("an addition to memory that holds no signal");
    if (*counter > watch.threshold) throw "signal " + std::to_string(index) + " exceeds its threshold";
    if (*counter == watch.threshold) check_rows(index / watch.blocks, index % watch.blocks);
}

}  // namespace

// Watch the counters of one D from now on.
extern "C" void watch_signals(const Watch* given) { watch = *given; }

namespace op {

void red_release_gpu_global_add_u32(u32* address, u32 value) {
    EMULATOR_ENTER();
    attempt([&] {
        *address += value;
        check_counter(address);
    });
}

}  // namespace op
}  // namespace emulator
