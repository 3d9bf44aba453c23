// Vectors of numbers that GCC and Clang compile for any host.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deep_gemm {

// Vectors of so many numbers; every 64-bit host has those of four. A comparison sets all bits of a number or none.
template <size_t kLanes>
struct Lanes {
    using Floats __attribute__((vector_size(kLanes * sizeof(float)))) = float;  // behind the type GCC would drop it
    using Bits __attribute__((vector_size(kLanes * sizeof(uint32_t)))) = uint32_t;
};

}  // namespace deep_gemm
