// TMA tensor maps: how a kernel's bulk copies see an operand. Encoded on the stack for each call (a tenth of a
// microsecond each) and passed to the kernel by value.
#pragma once

#include <cstdint>

#include "core/config.hpp"
#include "core/problem.hpp"
#include "runtime/call.hpp"
#include "runtime/driver.hpp"

namespace deep_gemm {

// Maps that a kernel does not use stay zero.
struct TensorMaps {
    driver::TensorMap a{}, b{}, d{}, scale_a{}, scale_b{}, a_tail{};
};

// Maps of the operands of a kernel of `problem`'s variant and `config`:
// A and B in boxes of 128 bytes of K and the rows that one CTA loads, or, MN-major, of 64 rows and 64 of K, 128-byte
// swizzle; the last rows of A, where they do not fill a tile, in boxes of just these; D, where it is staged, in boxes
// of what a warpgroup stores at once; vectors of scales in boxes of a tile's rows at one K step. What lies outside is
// read as zeros and not written. Maps of a grouped kernel have a third dim of groups, of which a box holds one. For
// blocks, the maps of A and B are those of one group over all of K; the kernel changes them for each group. The
// operands were checked. Throws Error(kLayout) with the driver's answer: an operand that the checks should have
// refused.
TensorMaps make_tensor_maps(const driver::Api& cuda, const Problem& problem, const Config& config, const Call& call,
                            const Sizes& sizes);

}  // namespace deep_gemm
