// Loads that nothing waits for.
//
// An ordinary load of shared memory may still be under way when its thread goes on to an arrival: the hardware waits
// for the load only where something depends on its value. So the kernels add `bits & zero` to the address of the
// barrier, `bits` being those of all that they read and `zero` a parameter that is 0 (Pipeline::release). A launch that
// checks dependencies passes the highest bit instead. Now and then the first lane of a warp then loads a float with
// that bit set, all other floats without it. From the first arrival on whose address has the bit, the load is over, and
// the barriers at which the lane arrives are noted. Who refills the memory must have waited for one of those. Results
// of such a launch mean nothing.
#include <algorithm>

#include "instruction.hpp"
#include "instructions.hpp"

namespace emulator {

constexpr u32 kSign = 1u << 31;

u32 zero_of_launch() { return world.launch().checks_dependencies ? kSign : 0; }

static bool overlap(Range a, Range b) { return a.begin < b.begin + b.size && b.begin < a.begin + a.size; }

void mark_loads(float* values, u32 elements, u32 address) {
    if (!world.launch().checks_dependencies) return;
    Thread& thread = self();
    for (u32 i = 0; i < elements; ++i) values[i] = __builtin_fabsf(values[i]);
    if (thread.lane != 0 || thread.watched.size > 0 || world.random(4) != 0) return;
    values[0] = -values[0];  // of a vector: all its elements arrive together, and the kernels keep one of them
    thread.watched = {locate_own(address).offset, 4};
    thread.waiting_barriers.clear();
}

u32 note_arrival(u32 address) {
    if (!world.launch().checks_dependencies) return address;
    Thread& thread = self();
    if (address & kSign || !thread.waiting_barriers.empty())
        thread.waiting_barriers.push_back(locate(address & ~kSign).offset);
    return address & ~kSign;
}

void note_store(Range range) {  // what has been stored depends on what has been loaded
    if (overlap(self().watched, range)) self().watched = {};
}

void check_refill(Cta& cta, Range range) {
    if (!world.launch().checks_dependencies) return;
    for (const auto& warp : cta.warps) {
        Thread& reader = *warp->threads[0];
        if (reader.watched.size == 0 || !overlap(reader.watched, range)) continue;
        const auto& barriers = reader.waiting_barriers;
        if (std::find(barriers.begin(), barriers.end(), self().last_barrier) == barriers.end())
            throw SharedMemory::describe("refilled after a barrier whose arrival does not wait for a load",
                                         reader.watched) +
                " by thread " + std::to_string(reader.index);
        reader.watched = {};
    }
}

}  // namespace emulator
