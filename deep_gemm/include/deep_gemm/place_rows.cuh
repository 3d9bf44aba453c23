// Finds the row of every choice of an expert, and the rows of each expert, in the order of a stable sort.
//
// One CTA. A warp has a share of the choices, and a row of counters in shared memory, one for each expert. It counts
// its share; the counters of all warps become the numbers of choices before each warp's; then the warps go through
// their shares again. Lanes whose choices name the same expert find each other by __match_any_sync, so that no atomic
// decides an order.
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {

// What is found. Ranks: the number of a choice among those of its expert, int; how many each expert has.
// Contiguous: its row, i64, where the rows of an expert begin at multiples of `unit`; where those of each expert end.
// Masked: its row, i64, where every expert has `unit` rows; how many each has. Choices of one token that name an expert
// again share a row.
enum class PlaceForm : u32 { kRanks, kContiguous, kMasked };

template <class Config>
struct PlaceRows {
    static constexpr PlaceForm kForm = static_cast<PlaceForm>(Config::kForm);
    static constexpr u32 kExperts = Config::kExperts;  // counters of a warp, a multiple of 32
    static constexpr u32 kWarps = kExperts <= 256 ? 32 : 8192 / kExperts;
    static constexpr u32 kThreads = 32 * kWarps, kCtasPerSm = 1, kUnroll = 4, kNone = ~0u;
    static_assert(kExperts % 32 == 0 && kWarps * kExperts <= 8192, "32 KB of counters");

    const i64* experts;  // [choices]
    u8* rows;            // [choices]: i64, of ranks int
    int* groups;         // [num_experts]
    u32 choices, top_k, num_experts, unit, num_rows;  // a choice of no expert gets num_rows

    // The first choice of the same token that names the same expert.
    __device__ __forceinline__ u32 first_of(u32 choice) const {
        u32 at = choice / top_k * top_k;
        while (experts[at] != experts[choice]) ++at;
        return at;
    }

    __device__ __forceinline__ u32 load(u32 choice) const {
        if (choice >= choices) return kNone;
        const u64 expert = u64(experts[choice]);
        return expert < num_experts ? u32(expert) : kNone;
    }

    __device__ __forceinline__ void write(u32 choice, u32 row) const {
        if constexpr (kForm == PlaceForm::kRanks) {
            reinterpret_cast<int*>(rows)[choice] = int(row);
        } else {
            reinterpret_cast<i64*>(rows)[choice] = i64(row);
        }
    }

    // Calls visit(choice, its expert) for this warp's share, a choice for each lane, and adds to `counters`, in their
    // order; kNone adds nothing.
    template <class Visit>
    __device__ __forceinline__ void walk(u32* counters, Visit visit) const {
        const u32 share = align_up(ceil_div(choices, kWarps), 32), first = threadIdx.x / 32 * share;
        const u32 last = min(first + share, choices), lane = threadIdx.x % 32;
#pragma unroll 1
        for (u32 base = first; base < last; base += 32 * kUnroll) {
            u32 expert[kUnroll];
#pragma unroll
            for (u32 i = 0; i < kUnroll; ++i) {
                const u32 choice = base + 32 * i + lane;
                expert[i] = choice < last ? load(choice) : kNone;
                if (kForm == PlaceForm::kMasked && expert[i] != kNone && first_of(choice) != choice) expert[i] = kNone;
            }
#pragma unroll
            for (u32 i = 0; i < kUnroll; ++i) {
                const u32 peers = __match_any_sync(0xFFFFFFFF, expert[i]), before = peers & ((1u << lane) - 1);
                const u32 counted = expert[i] == kNone ? 0 : counters[expert[i]];
                visit(base + 32 * i + lane, last, expert[i], counted + __popc(before));
                __syncwarp();
                if (expert[i] != kNone && before == 0) counters[expert[i]] = counted + __popc(peers);
                __syncwarp();
            }
        }
    }

    // Turn the numbers of choices of each expert into the rows where they begin, and store what `groups` holds.
    __device__ __forceinline__ void find_starts(u32* numbers) const {
        if constexpr (kForm != PlaceForm::kContiguous) {
            for (u32 expert = threadIdx.x; expert < num_experts; expert += kThreads) {
                groups[expert] = int(numbers[expert]);
                numbers[expert] = expert * unit;
            }
        } else if (threadIdx.x < 32) {
            constexpr u32 kEach = kExperts / 32;
            const u32 lane = threadIdx.x;
            u32 own = 0;
            for (u32 i = 0; i < kEach; ++i) own += align_up(numbers[lane * kEach + i], unit);
            u32 start = own;
#pragma unroll
            for (u32 step = 1; step < 32; step *= 2) {
                const u32 below = __shfl_up_sync(0xFFFFFFFF, start, step);
                if (lane >= step) start += below;
            }
            start -= own;
            for (u32 expert = lane * kEach; expert < (lane + 1) * kEach; ++expert) {
                const u32 number = numbers[expert];
                numbers[expert] = start;
                if (expert < num_experts) groups[expert] = int(start + number);
                start += align_up(number, unit);
            }
        }
    }

    __device__ __forceinline__ void run() const {
        __shared__ u32 counters[kWarps][kExperts];
        __shared__ u32 starts[kWarps > 1 ? kExperts : 1];  // static memory ends at 48 KB; one warp counts from there on
        u32* const own = counters[threadIdx.x / 32];
        for (u32 expert = threadIdx.x % 32; expert < kExperts; expert += 32) own[expert] = 0;
        __syncwarp();
        walk(own, [](u32, u32, u32, u32) {});
        __syncthreads();
        for (u32 expert = threadIdx.x; kWarps > 1 && expert < kExperts; expert += kThreads) {
            u32 before = 0;
#pragma unroll
            for (u32 warp = 0; warp < kWarps; ++warp) {
                const u32 number = counters[warp][expert];
                counters[warp][expert] = before;
                before += number;
            }
            starts[expert] = before;
        }
        __syncthreads();
        find_starts(kWarps > 1 ? starts : own);
        __syncthreads();
        walk(own, [&](u32 choice, u32 last, u32 expert, u32 rank) {
            if (choice >= last) return;
            write(choice, expert == kNone ? num_rows : kWarps > 1 ? starts[expert] + rank : rank);
        });
        if constexpr (kForm == PlaceForm::kMasked) share_rows();
    }

    // Give choices that name an expert of their token again the row of the first.
    __device__ __forceinline__ void share_rows() const {
        __syncthreads();
        for (u32 choice = threadIdx.x; choice < choices; choice += kThreads) {
            const u32 first = first_of(choice);
            if (first != choice) write(choice, u32(reinterpret_cast<const i64*>(rows)[first]));
        }
    }
};

}  // namespace deep_gemm
