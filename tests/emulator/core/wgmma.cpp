// WGMMA: issued by a warp at a time, executed in the warp's order at any time until the group has been waited for.
//
// A warp multiplies its 16 of the 64 rows. What it reads of shared memory counts as being read, and its accumulators
// hold a poison, until wgmma.wait_group says that they are done.
#include <algorithm>

#include "instruction.hpp"
#include "instructions.hpp"

namespace emulator {

constexpr u32 kRows = 16;  // of a warp

// An operand in shared memory, as its matrix descriptor says (PTX ISA, "Matrix descriptor format").
struct Descriptor {
    u32 start, leading, stride, swizzle;  // bytes; the swizzle as log2 of the units of 16 bytes in its lines
    bool is_mn_major;
    u32 element;

    static Descriptor decode(u64 bits, bool is_mn_major, u32 element) {
        static constexpr u32 kSwizzles[] = {0, 3, 2, 1};
        static constexpr u64 kKnown = 0x3fffull | 0x3fffull << 16 | 0x3fffull << 32 | 7ull << 49 | 3ull << 62;
        if ((bits & ~kKnown) != 0) throw std::string("WGMMA: bits of a matrix descriptor that must be 0 are set");
        if ((bits >> 49 & 7) != 0) throw std::string("WGMMA: a base offset in a matrix descriptor is not modelled");
        if (is_mn_major && element != 2) throw std::string("WGMMA: FP8 operands are K-major");
        return {u32(bits & 0x3fff) << 4,
                u32(bits >> 16 & 0x3fff) << 4,
                u32(bits >> 32 & 0x3fff) << 4,
                kSwizzles[bits >> 62],
                is_mn_major,
                element};
    }

    // Shared offset of element (mn, k).
    u32 place(u32 mn, u32 k) const {
        const u32 line = 16u << swizzle;
        u32 offset = start;
        if (is_mn_major) {
            const u32 byte = mn * element;
            offset += swizzle == 0 ? byte / 16 * stride + k / 8 * leading + k % 8 * 16 + byte % 16
                                   : byte / line * leading + k / 8 * stride + k % 8 * line + byte % line;
        } else {
            const u32 byte = k * element;
            offset += mn / 8 * stride + mn % 8 * line + (swizzle == 0 ? byte / 16 * leading + byte % 16 : byte);
        }
        return offset ^ (offset >> 7 & ((1u << swizzle) - 1)) << 4;
    }
};

static float decode_e4m3(u8 bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if ((bits & 0x7f) == 0x7f) return __builtin_nanf("");
    const float magnitude =
        exponent == 0 ? float(mantissa) / 512.0f : __builtin_ldexpf(float(8 + mantissa), exponent - 10);
    return bits & 0x80 ? -magnitude : magnitude;
}

static float decode(const u8* memory, u32 element) {
    static const auto table = [] {
        std::vector<float> values(256);
        for (u32 bits = 0; bits < 256; ++bits) values[bits] = decode_e4m3(u8(bits));
        return values;
    }();
    if (element == 1) return table[*memory];
    u16 half;
    std::memcpy(&half, memory, 2);
    const u32 bits = u32(half) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// One WGMMA of one warp.
struct Wgmma {
    u32 columns, depth, element;
    bool accumulates, has_registers_a;
    Descriptor a, b;
    std::vector<float> rows;  // A from registers: [16][depth]
    Accumulator* accumulator;
    u32 warp_row;
    Cta* cta;
    std::vector<Range> ranges;  // being read
    bool is_done = false;

    // Calls `visit(offset)` for each unit of 16 bytes that the warp reads.
    template <class Visit>
    void each_unit(Visit visit) const {
        if (!has_registers_a) each_unit_of(a, warp_row, kRows, visit);
        each_unit_of(b, 0, columns, visit);
    }

    void execute() {
        const std::vector<float> left = has_registers_a ? rows : read(a, warp_row, kRows, false),
                                 right = read(b, 0, columns, true);
        float* sum = accumulator->values.data();
        if (!accumulates) std::fill_n(sum, kRows * columns, 0.0f);
        for (u32 k = 0; k < depth; ++k)
            for (u32 row = 0; row < kRows; ++row)
                add(sum + row * columns, left[row * depth + k], right.data() + k * columns);
        is_done = true;
    }

 private:
    template <class Visit>
    void each_unit_of(const Descriptor& operand, u32 first, u32 count, Visit visit) const {
        const u32 step = 16 / element;
        for (u32 mn = 0; mn < count; mn += operand.is_mn_major ? step : 1)
            for (u32 k = 0; k < depth; k += operand.is_mn_major ? 1 : step) visit(operand.place(first + mn, k));
    }

    // [mn][depth], or [depth][mn] where `by_depth`.
    std::vector<float> read(const Descriptor& operand, u32 first, u32 count, bool by_depth) const {
        std::vector<float> values(size_t(count) * depth);
        for (u32 mn = 0; mn < count; ++mn)
            for (u32 k = 0; k < depth; ++k)
                values[by_depth ? k * count + mn : mn * depth + k] =
                    decode(cta->shared.at({operand.place(first + mn, k), element}), element);
        return values;
    }

    void add(float* sum, float left, const float* right) const {
        for (u32 column = 0; column < columns; ++column) sum[column] += left * right[column];
    }
};

// Register i of a lane holds this place of the warp's 16 rows.
static size_t place_of(u32 lane, u32 i, u32 columns) {
    return (lane / 4 + 8 * (i % 4 / 2)) * columns + 8 * (i / 4) + lane % 4 * 2 + i % 2;
}

static constexpr u32 kPoison = 0x7fe0dead;  // a NaN that no kernel computes

static void set_poison(float* value) { std::memcpy(value, &kPoison, 4); }
static bool is_poison(const float* value) { return std::memcmp(value, &kPoison, 4) == 0; }

static Accumulator& begin_accumulator(Warp& warp, u32 columns) {
    const auto found = warp.accumulators.find(warp.registers_of[0][0]);
    if (found != warp.accumulators.end()) {
        if (found->second.columns != columns)
            throw std::string("WGMMAs of different shapes share accumulators that are in flight");
        return found->second;
    }
    Accumulator& accumulator = warp.accumulators[warp.registers_of[0][0]];
    accumulator.columns = columns;
    accumulator.values.resize(kRows * columns);
    for (u32 lane = 0; lane < 32; ++lane) {
        if (!warp.threads[lane]->has_wgmma_fence)
            throw std::string("WGMMA with new accumulators and no wgmma.fence since the last wait");
        accumulator.registers[lane] = warp.registers_of[lane];
        for (u32 i = 0; i < columns / 2; ++i) {
            accumulator.values[place_of(lane, i, columns)] = *accumulator.registers[lane][i];
            set_poison(accumulator.registers[lane][i]);
        }
    }
    return accumulator;
}

static void end_accumulator(Warp& warp, Accumulator& accumulator) {
    if (--accumulator.pending > 0) return;
    for (u32 lane = 0; lane < 32; ++lane) {
        for (u32 i = 0; i < accumulator.columns / 2; ++i) {
            float* value = accumulator.registers[lane][i];
            if (!is_poison(value)) throw std::string("an accumulator has been written while its WGMMA was in flight");
            *value = accumulator.values[place_of(lane, i, accumulator.columns)];
        }
    }
    warp.accumulators.erase(accumulator.registers[0][0]);
}

// A lane's four registers of A, m64k16 BF16 or m64k32 FP8 (PTX ISA, "Register fragments for wgmma").
static void set_rows(Wgmma& work, const Warp& warp) {
    const u32 each = 4 / work.element, width = 4 * each;  // elements of a register, of a row of four lanes
    work.rows.resize(kRows * work.depth);
    for (u32 lane = 0; lane < 32; ++lane)
        for (u32 i = 0; i < 4; ++i)
            for (u32 e = 0; e < each; ++e) {
                u8 bytes[4];
                std::memcpy(bytes, &warp.matrices[lane][i], 4);
                const u32 row = lane / 4 + 8 * (i % 2), k = i / 2 * width + lane % 4 * each + e;
                work.rows[row * work.depth + k] = decode(bytes + e * work.element, work.element);
            }
}

static void issue(Warp& warp, std::shared_ptr<Wgmma> work) {
    Thread& thread = self();
    work->cta = thread.cta;
    work->warp_row = thread.index / 32 % 4 * kRows;
    work->accumulator = &begin_accumulator(warp, work->columns);
    ++work->accumulator->pending;
    if (work->has_registers_a) set_rows(*work, warp);
    work->each_unit([&](u32 offset) {
        work->ranges.push_back({offset, 16});
        check_fenced(*work->cta, {offset, 16}, "WGMMA");
        work->cta->shared.begin_read({offset, 16});
    });
    warp.uncommitted.push_back(work);
    warp.multiplications.push_back(work);
    world.post([&warp] {
        warp.multiplications.front()->execute();
        warp.multiplications.pop_front();
        world.wake(warp.wgmma_waiters);
    });
}

static void check_uniform(const Warp& warp) {
    for (u32 lane = 1; lane < 32; ++lane)
        if (warp.in[lane] != warp.in[0] || warp.out[lane] != warp.out[0])
            throw std::string("WGMMA: lanes of a warp pass different descriptors");
}

void wgmma(float* const* d, u32 columns, u32 depth, const char* types, const u32* registers_a, u64 a, u64 b,
           bool accumulates, const int* immediates, u32 num_immediates) {
    EMULATOR_ENTER();
    attempt([&] {
        const bool is_fp8 = std::strcmp(types, "f32.e4m3.e4m3") == 0;
        if (!is_fp8 && std::strcmp(types, "f32.bf16.bf16") != 0)
            throw std::string("WGMMA of types that are not modelled: ") + types;
        if (immediates[0] != 1 || immediates[1] != 1) throw std::string("WGMMA: negated operands are not modelled");
        const u32 element = is_fp8 ? 1 : 2;
        const bool has_registers_a = registers_a != nullptr;
        // The transposition of A goes with its descriptor only.
        const bool is_mn_a = !has_registers_a && num_immediates == 4 && immediates[2] != 0,
                   is_mn_b = num_immediates > 2 && immediates[num_immediates - 1] != 0;
        Warp& warp = *self().warp;
        const u32 lane = self().lane;
        warp.in[lane] = a, warp.out[lane] = b;
        warp.registers_of[lane].assign(d, d + columns / 2);
        if (has_registers_a) std::copy(registers_a, registers_a + 4, warp.matrices[lane]);
        meet("wgmma.mma_async", kWholeWarp, [&](Warp& warp) {
            check_uniform(warp);
            auto work = std::make_shared<Wgmma>();
            work->columns = columns, work->depth = depth, work->element = element;
            work->accumulates = accumulates, work->has_registers_a = has_registers_a;
            if (!has_registers_a) work->a = Descriptor::decode(a, is_mn_a, element);
            work->b = Descriptor::decode(b, is_mn_b, element);
            issue(warp, work);
        });
    });
}

// The program knows that the oldest group is done.
static void retire(Warp& warp) {
    for (const auto& work : warp.wgmma_groups.front()) {
        for (const Range& range : work->ranges) work->cta->shared.end_read(range);
        end_accumulator(warp, *work->accumulator);
    }
    warp.wgmma_groups.pop_front();
}

namespace op {

void wgmma_fence_sync_aligned() {
    EMULATOR_ENTER();
    self().has_wgmma_fence = true;
}

void wgmma_commit_group_sync_aligned() {
    EMULATOR_ENTER();
    attempt([&] {
        meet("wgmma.commit_group", kWholeWarp, [](Warp& warp) {
            warp.wgmma_groups.push_back(std::move(warp.uncommitted));
            warp.uncommitted.clear();
        });
    });
}

void wgmma_wait_group_sync_aligned(u32 pending) {
    EMULATOR_ENTER();
    attempt([&] {
        meet("wgmma.wait_group", kWholeWarp, [](Warp&) {});
        Warp& warp = *self().warp;
        self().has_wgmma_fence = false;
        while (warp.wgmma_groups.size() > pending) {
            const auto& group = warp.wgmma_groups.front();
            if (std::all_of(group.begin(), group.end(), [](const auto& work) { return work->is_done; })) {
                retire(warp);
            } else {
                world.wait(warp.wgmma_waiters, "its WGMMAs");
            }
        }
    });
}

}  // namespace op
}  // namespace emulator
