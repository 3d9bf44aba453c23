// How many CTAs of a persistent grid share an SM.
#pragma once

#include "core/legality.hpp"

namespace deep_gemm {

// `tiles`: of CTAs or clusters, `m_tiles` of them along m. `register_blocks`: CTAs that an SM has registers for; no
// more share it in dense grids, because one that waits for another to end is alone in the end. Grouped grids were swept
// with as many as the estimate says (blocks_per_sm).
int grid_blocks_per_sm(const Problem& problem, const Config& config, int64_t m_tiles, int64_t tiles, int32_t sms,
                       int register_blocks);

// Raised where the same kernels of an op kind get other grids, with which they take other times; 1: they never did.
// Part of the kernel hash. LAUNCH_ABI stays: the kernels take any grid.
int grid_revision(const OpKind& kind);

}  // namespace deep_gemm
