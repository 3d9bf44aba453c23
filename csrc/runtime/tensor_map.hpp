// TMA tensor maps: how a kernel's bulk copies see an operand. Encoded on the stack for each call (a tenth of a microsecond each)
// and passed to the kernel by value.
#pragma once

#include <cstdint>

#include "core/config.hpp"
#include "runtime/driver.hpp"

namespace deep_gemm {

// A matrix as the kernels' maps see it: `rows` rows of `columns` contiguous elements.
struct MatrixLayout {
    uint64_t address;  // 16-byte aligned
    int64_t rows, columns;
    int64_t pitch_bytes;  // a multiple of 16, below 2^40
};

struct Fp8GemmMaps {
    driver::TensorMap a, b, d;
};

// Width in elements of the D map's box: the largest power of two up to 64 that divides block_n, so that a slab of the BF16 tile
// is one swizzle row.
int epilogue_slab(const Config& config);

// Maps of A [m, k] and B [n, k] (FP8, 128-byte swizzle, boxes of 128 columns and the rows that one CTA loads) and of D [m, n]
// (BF16, boxes of 64 rows and a slab). What lies outside is read as zeros and not written.
// Throws Error(kLayout) with the driver's answer: the checks before should have refused such an operand.
Fp8GemmMaps make_fp8_gemm_maps(const driver::Api& cuda, const Config& config, const MatrixLayout& a, const MatrixLayout& b,
                               const MatrixLayout& d);

}  // namespace deep_gemm
