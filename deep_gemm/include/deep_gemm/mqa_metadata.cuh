// The schedule of the paged index logits, from the lengths on the device: slots of equally many units of 64 positions,
// over the batch rows in order. schedule[s] = {batch row, unit in it} where slot s begins, the unit
// floor(s * units / slots) of all; schedule[slots] = {batch rows, all units}. The unit depends on neither heads nor
// config, because the caller makes the schedule before the call.
//
// One CTA. Each thread counts the units of its share of the batch rows, a scan adds them up, and then each thread finds
// the beginning of its slots: by halving among the threads' sums, then along one thread's share.
#pragma once

#include "deep_gemm/mqa_ptx.cuh"
#include "deep_gemm/mqa_types.cuh"

namespace deep_gemm {

struct MqaMetadata {
    static constexpr u32 kThreads = 1024;

    const int* lengths;  // [rows] or [rows, next_n]: the greatest of a row counts
    int* schedule;
    i64 lengths_stride;
    u32 batch, next_n, num_slots;
    u32* sums;  // in shared memory, [kThreads]: units of the shares up to and with each thread's

    __device__ __forceinline__ u32 units_of(u32 at) const {
        const int* of_row = lengths + at * lengths_stride;
        int length = 0;
#pragma unroll 1
        for (u32 t = 0; t < next_n; ++t) length = max(length, ptx::load_index(of_row + t));
        return ceil_div(length, kMqaTile);
    }

    // sums[t] = the sum of `value` over the threads 0 .. t.
    __device__ __forceinline__ void scan(u32 value) const {
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
        for (u32 step = 1; step < 32; step *= 2) {
            const u32 other = __shfl_up_sync(0xffffffff, value, step);
            if (lane >= step) value += other;
        }
        sums[threadIdx.x] = value;
        __syncthreads();
        u32 before = lane < warp ? sums[32 * lane + 31] : 0;
        before = __reduce_add_sync(0xffffffff, before);
        __syncthreads();
        sums[threadIdx.x] = value + before;
        __syncthreads();
    }

    __device__ __forceinline__ void write(u32 slot, u32 each) const {
        const u32 total = sums[kThreads - 1], begin = u64(total) * slot / num_slots;
        u32 low = 0, high = kThreads - 1;  // the first thread whose sum is above `begin`
        while (low < high) {
            const u32 middle = (low + high) / 2;
            if (sums[middle] > begin) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        u32 at = low * each, left = begin - (low == 0 ? 0 : sums[low - 1]);
        if (begin >= total) {
            at = batch;
            left = slot == num_slots ? total : 0;
        }
#pragma unroll 1
        for (; at < batch; ++at) {
            const u32 units = units_of(at);
            if (left < units) break;
            left -= units;
        }
        schedule[2 * i64(slot)] = at;
        schedule[2 * i64(slot) + 1] = left;
    }

    __device__ __forceinline__ void run() const {
        ptx::wait_for_dependencies();
        ptx::launch_dependents();
        const u32 each = ceil_div(batch, kThreads), first = threadIdx.x * each, last = min(first + each, batch);
        u32 units = 0;
#pragma unroll 1
        for (u32 at = first; at < last; ++at) units += units_of(at);
        scan(units);
        for (u32 slot = threadIdx.x; slot <= num_slots; slot += kThreads) write(slot, each);
    }
};

}  // namespace deep_gemm

extern "C" __global__ void __launch_bounds__(deep_gemm::MqaMetadata::kThreads)
deep_paged_mqa_logits_metadata(const int* lengths, int* schedule, deep_gemm::i64 lengths_stride, deep_gemm::u32 batch,
                               deep_gemm::u32 next_n, deep_gemm::u32 num_slots) {
    __shared__ deep_gemm::u32 sums[deep_gemm::MqaMetadata::kThreads];
    deep_gemm::MqaMetadata{lengths, schedule, lengths_stride, batch, next_n, num_slots, sums}.run();
}
