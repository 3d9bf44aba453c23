// A second tile for masked groups. The host knows the rows that are expected of a group; how many there are stands in
// device memory. Where groups are few, another tile needs a round less for some of these numbers, so that a kernel may
// hold two, of which it takes one when it has read the rows (sm90/scheduler/tile_choice.cuh). A second tile is a config
// like the first one, and no part of it: configs are measured, recorded and learned alone.
#pragma once

#include <optional>
#include <string>

#include "core/config.hpp"
#include "core/device.hpp"
#include "core/problem.hpp"

namespace deep_gemm {

// A bound on the kernels that are compiled. Of sizes drawn at random fewer gain the more groups there are: 2.3 % with
// eight, 1.7 with nine, 0.5 with sixteen.
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
// of the better one of both. Nothing where the gain is small, and for problems of other op kinds or of many groups.
std::optional<Config> find_second_tile(const Problem& problem, const Config& first, const Device& device);

// "128x112x64 s6 c1x1", or "128x112x64 s6 c1x1 or 128x192x64 s4 c1x1".
std::string name_tiles(const Config& first, const std::optional<Config>& second);

}  // namespace deep_gemm
