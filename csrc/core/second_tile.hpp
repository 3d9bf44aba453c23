// A second tile for groups of rows, of which a kernel may hold two: it takes one when it has read how many rows the
// groups have, which the host does not know (sm90/scheduler/tile_choice.cuh). Of masked groups the host knows the rows
// that are expected; where groups are few, another tile needs a round less for some of the numbers that these stand
// for. Of groups with ends it knows nothing, unless the caller says it: each may hold few rows of an alignment, for
// which the tiles that fill it take a third longer. A second tile is a config like the first one, and no part of it:
// configs are measured, recorded and learned alone.
#pragma once

#include <optional>
#include <string>

#include "core/config.hpp"
#include "core/device.hpp"
#include "core/problem.hpp"

namespace deep_gemm {

// A bound on the kernels that are compiled. Of 1,500 sizes drawn at random fewer gain the more groups there are: 5.3 %
// with eight, 3.5 with nine, 0.7 with sixteen.
inline constexpr int32_t kMostGroupsOfTwoTiles = 8;

// Empty where a kernel of `problem`'s variant can hold `first` and `second`, which are legal; else one sentence with
// the value, the rule and the remedy.
std::string second_tile_reason(const Problem& problem, const Config& first, const Config& second);

// Empty where a kernel of `problem`'s variant can be made of `first` and, where there is one, `second` on `device`;
// else which of them is not legal and why, or why they cannot stand together.
std::string tiles_reason(const Problem& problem, const Config& first, const std::optional<Config>& second,
                         const Device& device);

// What a round of the second tile counts in rounds of the first one: their times by the estimate, and 2 % more, by
// which the kernel leaves out ties. Of 152 cases this spares three that would lose 5 to 16 %, and takes no gain (H200).
double second_tile_weight(const Problem& problem, const Config& first, const Config& second, const Device& device);

// The tile that lets a kernel of `first` gain most, with the knobs of loop_rule.hpp: by the mean over draws of the rows
// of the better one of both; of groups with ends that which takes least for few rows. Nothing where the gain is small,
// where masked groups are many, where groups with ends fill their alignment, as far as the host knows, and for other op
// kinds.
std::optional<Config> find_second_tile(const Problem& problem, const Config& first, const Device& device);

// "128x112x64 s6 c1x1", or "128x112x64 s6 c1x1 or 128x192x64 s4 c1x1".
std::string name_tiles(const Config& first, const std::optional<Config>& second);

}  // namespace deep_gemm
