// Adds up numbers of which every CTA of a cluster has its share, in the order of the CTAs' ranks, so that the result
// does not depend on timing.
//
// The numbers are dealt to the ranks in vectors of four. Every CTA sends its vectors to their owners' shared memory by
// st.async, which completes bytes on the owner's barrier; the owner adds up what it received. The hardware starts the
// CTAs of a cluster together, so none waits for one that may not run, and a CTA stays until everything sent to it has
// arrived.
#pragma once

#include "deep_gemm/sm90/ptx/ptx.cuh"

namespace deep_gemm {

template <u32 kRanks, u32 kThreads, u32 kNumbers>
struct ClusterSum {
    static_assert(kNumbers % 4 == 0, "whole vectors");
    static constexpr u32 kVectors = kNumbers / 4, kOwned = ceil_div(kVectors, kRanks);

    using Received = float4[kRanks][kOwned];

    u32 received, barrier;  // shared addresses

    // All threads call each of these once, in this order, and `send` any number of times between the last two.
    __device__ __forceinline__ void begin() const {
        if (threadIdx.x == 0) {
            ptx::barrier_init(barrier, 1);
            ptx::barrier_arrive_expect(barrier, num_owned() * kRanks * 16);
            ptx::fence_barrier_init();
        }
        ptx::cluster_arrive();
    }

    __device__ __forceinline__ void wait_for_barriers() const { ptx::cluster_wait(); }

    __device__ __forceinline__ void send(u32 vector, const float (&numbers)[4]) const {
        const u32 owner = vector / kOwned, address = address_of(ptx::cluster_rank(), vector - owner * kOwned);
        ptx::store_async_4(ptx::map_to_rank(address, owner), ptx::map_to_rank(barrier, owner), numbers);
    }

    // Call `visit(place, sum)` for this CTA's numbers.
    template <class Visit>
    __device__ __forceinline__ void finish(Visit visit) const {
        ptx::barrier_wait(barrier, 0);
        const u32 first = ptx::cluster_rank() * kOwned * 4, owned = num_owned() * 4;
#pragma unroll 1
        for (u32 at = threadIdx.x; at < owned; at += kThreads) visit(first + at, add(address_of(0, 0) + at * 4));
    }

   private:
    __device__ __forceinline__ u32 address_of(u32 sender, u32 vector) const {
        return received + (sender * kOwned + vector) * 16;
    }

    __device__ __forceinline__ static u32 num_owned() {
        const u32 first = ptx::cluster_rank() * kOwned;
        return first >= kVectors ? 0 : kVectors - first < kOwned ? kVectors - first : kOwned;
    }

    __device__ __forceinline__ static float add(u32 address) {
        float sum = 0.0f;
#pragma unroll
        for (u32 sender = 0; sender < kRanks; ++sender)
            sum = __fadd_rn(sum, ptx::load_shared(address + sender * kOwned * 16));
        return sum;
    }
};

}  // namespace deep_gemm
