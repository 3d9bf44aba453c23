// What the estimate asks of a config apart from its sizes: the same for all problems of a variant, so that a default
// space holds it beside each config. Tiles are rated without the knobs of the main loop; with them the facts are the
// same.
#pragma once

#include <cstdint>

#include "core/config.hpp"
#include "core/problem.hpp"

namespace deep_gemm {

struct TileFacts {
    int16_t blocks_per_sm, logits_columns;  // the columns: 0 of products
    bool is_pipelined, is_staged, has_column_scales, has_two_scales;
};

TileFacts find_facts(const Problem& variant, const Config& config);

}  // namespace deep_gemm
