// Split K: the CTAs of a cluster hold partial sums of one tile and add them in rank order, so that the result does not
// depend on timing.
//
// The tile's columns are dealt in groups of eight to the ranks. Every rank sends the groups of others to their owner's
// shared memory by st.async, which completes bytes on the owner's barrier; the owner then adds what it received to its
// own, rank 0 first. No CTA waits for one outside its cluster, and a CTA that owns groups stays until everything sent
// to it has arrived.
#pragma once

#include "deep_gemm/sm90/gemm_layout.cuh"
#include "deep_gemm/sm90/ptx/ptx.cuh"

namespace deep_gemm {

template <class Config>
struct SplitK {
    using Layout = GemmLayout<Config>;
    static constexpr u32 kRanks = Config::kSplitK, kGroups = Layout::kGroups;

    u32 receive, received;  // shared addresses of the buffer and its barrier
    u32 rank;

    __device__ __forceinline__ static constexpr u32 first_group(u32 rank) { return rank * kGroups / kRanks; }
    __device__ __forceinline__ static constexpr u32 owner(u32 group) {
        u32 rank = 0;
        while (first_group(rank + 1) <= group) ++rank;
        return rank;
    }
    __device__ __forceinline__ u32 num_owned() const { return first_group(rank + 1) - first_group(rank); }

    __device__ __forceinline__ void initialise_barrier() const {
        ptx::barrier_init(received, 1);
        ptx::barrier_arrive_expect(received, num_owned() * (kRanks - 1) * Layout::kMathThreads * 16);
    }

    // Where math thread `thread` finds slot `slot` of what `sender` sent.
    __device__ __forceinline__ u32 slot_address(u32 sender, u32 slot, u32 thread) const {
        return receive + ((sender * Layout::kMaxGroups + slot) * Layout::kMathThreads + thread) * 16;
    }

    __device__ __forceinline__ void send(const float (&final)[Layout::kAccumulators], u32 thread) const {
#pragma unroll
        for (u32 group = 0; group < kGroups; ++group) {
            send_group(final, group, thread);
        }
    }

    // Add the ranks' values of one slot, in rank order.
    __device__ __forceinline__ void sum(float (&value)[4], u32 slot, u32 thread) const {
        ptx::load_shared_4(value, slot_address(0, slot, thread));
#pragma unroll
        for (u32 sender = 1; sender < kRanks; ++sender) {
            float part[4];
            ptx::load_shared_4(part, slot_address(sender, slot, thread));
#pragma unroll
            for (u32 i = 0; i < 4; ++i) value[i] = __fadd_rn(value[i], part[i]);
        }
    }

   private:
    __device__ __forceinline__ void send_group(const float (&final)[Layout::kAccumulators], u32 group,
                                               u32 thread) const {
        const u32 to = owner(group), address = slot_address(rank, group - first_group(to), thread);
        if (to == rank) {
            ptx::store_shared_4(address, final + 4 * group);  // the same thread will read it
        } else {
            ptx::store_async_4(ptx::map_to_rank(address, to), ptx::map_to_rank(received, to), final + 4 * group);
        }
    }
};

}  // namespace deep_gemm
