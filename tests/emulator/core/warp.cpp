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

// The BF16 number in the lower or upper half of a register.
static float half_of(u32 pair, u32 half) {
    const u32 bits = half == 0 ? pair << 16 : pair & 0xffff0000;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// Lane 4 * r + q has, of A, K 2 * q and the next one of row r in register 0, of row r + 8 in 1, and 8 further K in 2
// and 3; of B the same K of column r in two registers; of D, columns 2 * q and the next one of rows r and r + 8.
static float multiply_row(const Warp& warp, u32 row, u32 column, float sum) {
    for (u32 k = 0; k < 16; ++k) {
        const u32 a = warp.matrices[row % 8 * 4 + k / 2 % 4][row / 8 + k / 8 * 2];
        const u32 b = u32(warp.in[column * 4 + k / 2 % 4] >> 32 * (k / 8));
        sum += half_of(a, k % 2) * half_of(b, k % 2);
    }
    return sum;
}

namespace op {

void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1,
                                                         u32 a2, u32 a3, u32 b0, u32 b1, float c0, float c1, float c2,
                                                         float c3) {
    EMULATOR_ENTER();
    attempt([&] {
        Warp& warp = *self().warp;
        const u32 lane = self().lane, a[] = {a0, a1, a2, a3};
        const float c[] = {c0, c1, c2, c3};
        std::memcpy(warp.matrices[lane], a, sizeof a), std::memcpy(warp.sums[lane], c, sizeof c);
        warp.in[lane] = u64(b1) << 32 | b0;
        meet("mma.sync", kWholeWarp, [](Warp& all) {
            for (u32 to = 0; to < 32; ++to)
                for (u32 i = 0; i < 4; ++i)
                    all.sums[to][i] = multiply_row(all, to / 4 + i / 2 * 8, to % 4 * 2 + i % 2, all.sums[to][i]);
        });
        d0 = warp.sums[lane][0], d1 = warp.sums[lane][1], d2 = warp.sums[lane][2], d3 = warp.sums[lane][3];
    });
}

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
