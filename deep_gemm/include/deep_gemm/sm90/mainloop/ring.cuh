// A position in a ring of stages: the stage, and the parity of the barrier phase that belongs to this turn. A consumer
// waits for the full barrier with `phase`; a producer waits for the empty barrier with the opposite one, so that its
// first turn does not wait.
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {

template <u32 kNumStages>
struct Ring {
    u32 stage = 0, phase = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == kNumStages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

}  // namespace deep_gemm
