// What the schedulers of groups with known ends (psum layout) share: the host's numbers for them, and where a group
// begins and ends.
#pragma once

#include "deep_gemm/sm90/ptx/grouped_ptx.cuh"
#include "deep_gemm/sm90/scheduler/group_params.cuh"

namespace deep_gemm {

// Places in GroupParams::reserved; the host's twin has names for them (csrc/runtime/launch.hpp), both sides change
// together. Pitches are those of rows of K in MN-major operands, in units of 16 bytes.
constexpr u32 kPsumAlignment = 0, kPsumZeroPadding = 1, kPsumPitchA = 2, kPsumPitchB = 3;

// The ends of `count` groups along a dim of `limit` elements, as the device's memory holds them. They ascend, unless
// the caller made a mistake: then groups are not where he wants them, but within the dim.
struct GroupEnds {
    const int* ends;
    u32 count, limit;

    __device__ __forceinline__ u32 end_of(u32 group) const {
        const int end = ptx::load_index(ends + group);
        return end < 0 ? 0 : u32(end) < limit ? u32(end) : limit;
    }
    __device__ __forceinline__ u32 start_of(u32 group, u32 alignment) const {
        return group == 0 ? 0 : ceil_div(end_of(group - 1), alignment) * alignment;
    }

    // The first group that ends behind `place`, or `count`. By a whole warp, which looks at 32 groups at once: at the
    // last one of each of 32 parts, then within the part that has it.
    __device__ __forceinline__ u32 find(u32 place) const {
        u32 first = 0, left = count;
#pragma unroll 1
        for (;;) {
            const u32 part = ceil_div(left, 32), last = (threadIdx.x % 32 + 1) * part - 1;
            const u32 found = __ballot_sync(0xffffffff, end_of(first + (last < left ? last : left - 1)) > place);
            if (found == 0) return first + left;
            const u32 before = (__ffs(found) - 1) * part;
            first += before, left -= before;
            if (part == 1) return first;
            if (left > part) left = part;
        }
    }
};

}  // namespace deep_gemm
