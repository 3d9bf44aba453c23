#include "core/tile_facts.hpp"

#include "core/legality.hpp"
#include "core/loop_rule.hpp"

namespace deep_gemm {

TileFacts find_facts(const Problem& variant, const Config& config) {
    const Config tile = without_loop_knobs(config);
    return {.blocks_per_sm = int16_t(blocks_per_sm(variant, tile)),
            .logits_columns = int16_t(is_logits(variant) ? logits_columns(variant, tile) : 0),
            .d_tiles = int8_t(has_two_d_tiles(variant, tile) ? 2 : is_staged(variant, tile)),
            .is_pipelined = is_pipelined(variant, tile),
            .has_column_scales = has_column_scales(variant, tile),
            .has_two_scales = has_two_scales(variant, tile)};
}

}  // namespace deep_gemm
