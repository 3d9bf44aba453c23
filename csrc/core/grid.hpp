// How many CTAs of a persistent grid share an SM.
#pragma once

#include "core/legality.hpp"

namespace deep_gemm {

// CTAs of a dense grid to an SM that holds `most` of them at once. `tiles`: of CTAs, `m_tiles` of them along m.
int dense_blocks_per_sm(int64_t m_tiles, int64_t tiles, int32_t sms, int most);

// The same of any grid; `tiles`: of CTAs or clusters. `register_blocks`: CTAs that an SM has registers for. No more of
// them share it in dense grids: one that waits for another to end starts late and then runs by itself. Grouped grids
// were swept with as many as the estimate says (blocks_per_sm).
int grid_blocks_per_sm(const Problem& problem, const Config& config, int64_t m_tiles, int64_t tiles, int32_t sms,
                       int register_blocks);

// Raised where the same kernels of an op kind get other grids, with which they take other times; 1: they never did.
// Part of the kernel hash. LAUNCH_ABI stays: the kernels take any grid.
int grid_revision(const OpKind& kind);

}  // namespace deep_gemm
