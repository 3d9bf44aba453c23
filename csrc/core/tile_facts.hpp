// What the estimate asks of a config apart from its sizes: the same for all problems of a variant, so that a default
// space holds it beside each config. Tiles are rated without the knobs of the main loop, and these are the facts of a
// tile without them, whatever knobs its config has.
#pragma once

#include <cstdint>

#include "core/config.hpp"
#include "core/problem.hpp"

namespace deep_gemm {

struct TileFacts {
    int16_t blocks_per_sm, logits_columns;  // the columns: 0 of products
    int8_t d_tiles;  // in shared memory: 0 where D is stored directly, 2 where C comes one tile ahead
    bool is_pipelined, has_column_scales, has_two_scales;
};

TileFacts find_facts(const Problem& variant, const Config& config);

}  // namespace deep_gemm
