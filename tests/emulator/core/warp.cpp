// Instructions of a whole warp.
#include "instruction.hpp"
#include "instructions.hpp"

namespace emulator {

// Every lane gives a value and gets what `choose(warp, lane)` says of all values.
template <class Choose>
static u64 exchange(const char* what, u32 mask, u64 value, Choose choose) {
    self().warp->in[self().lane] = value;
    meet(what, mask, [&](Warp& warp) {
        for (u32 lane = 0; lane < 32; ++lane)
            if (mask >> lane & 1) warp.out[lane] = choose(warp, lane);
    });
    return self().warp->out[self().lane];
}

u32 shuffle(u32 mask, u32 value, u32 from, const char* what) {
    EMULATOR_ENTER();
    u64 result = 0;
    attempt([&] {
        if (from < 32 && !(mask >> from & 1)) throw std::string(what) + " from a lane that the mask leaves out";
        const u32 lane = from < 32 ? from : self().lane;
        self().warp->in[self().lane] = value;
        self().warp->out[self().lane] = lane;
        meet(what, mask, [&](Warp& warp) {
            for (u32 to = 0; to < 32; ++to)
                if (mask >> to & 1) warp.out[to] = warp.in[warp.out[to]];
        });
        result = self().warp->out[self().lane];
    });
    return u32(result);
}

u32 vote(u32 mask, bool is_true) {
    EMULATOR_ENTER();
    u64 result = 0;
    attempt([&] {
        result = exchange("a vote", mask, is_true, [mask](const Warp& warp, u32) {
            u32 votes = 0;
            for (u32 lane = 0; lane < 32; ++lane) votes |= (mask >> lane & 1 && warp.in[lane] != 0) ? 1u << lane : 0;
            return votes;
        });
    });
    return u32(result);
}

u32 reduce(u32 mask, u32 value, u32 (*combine)(u32, u32)) {
    EMULATOR_ENTER();
    u64 result = 0;
    attempt([&] {
        result = exchange("a reduction", mask, value, [mask, combine](const Warp& warp, u32) {
            u32 first = u32(__builtin_ctz(mask)), all = u32(warp.in[first]);
            for (u32 lane = first + 1; lane < 32; ++lane)
                if (mask >> lane & 1) all = combine(all, u32(warp.in[lane]));
            return all;
        });
    });
    return u32(result);
}

void meet_warp(u32 mask) {
    EMULATOR_ENTER();
    attempt([&] { meet("__syncwarp", mask, [](Warp&) {}); });
}

namespace op {

void elect_sync(bool& is_elected, u32 mask) {
    EMULATOR_ENTER();
    attempt([&] {
        if (mask != kWholeWarp) throw std::string("elect.sync of a part of a warp is not modelled");
        meet("elect.sync", mask, [](Warp&) {});
        is_elected = self().lane == world.leader();
    });
}

}  // namespace op
}  // namespace emulator
