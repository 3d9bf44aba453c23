// Legality, candidates, heuristic and features.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "core/bindings.hpp"
#include "core/candidates.hpp"
#include "core/config_features.hpp"
#include "core/error.hpp"
#include "core/grid.hpp"
#include "core/heuristic.hpp"
#include "core/legality.hpp"
#include "core/logits_estimate.hpp"
#include "core/loop_rule.hpp"
#include "core/python.hpp"
#include "core/second_tile.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace deep_gemm {
namespace {

// Tile arithmetic holds for the kernels' own shapes only; the estimate needs no legality on this very device.
void check_geometry(Op op, const Config& config) {
    static const Device reference = known_device("h200");
    const std::string reason = impossible_reason(op, config, reference);
    if (!reason.empty()) throw Error(ErrorKind::kConfig, reason);
}

py::dict constants_dict(const std::string& sku) {
    py::dict out;
    const HeuristicRates& rates = base_rates(sku);
    for (const RateField& field : kRateFields) out[field.name] = rates.*field.member;
    return out;
}

// What the estimate rates a problem as.
Problem rated(const Problem& problem) { return find_masked_twin(problem).value_or(problem); }

double parse_number(const char* name, const py::object& object) {
    py::detail::make_caster<double> number;
    if (!holds_tensor(object) && number.load(object, true)) return number;
    throw Error(ErrorKind::kArgument,
                std::string(name) + " = " + short_repr(object) + ": must be a number; pass a float");
}

HeuristicRates rates_from(const std::optional<py::dict>& constants, const Device& device) {
    HeuristicRates rates = base_rates(device.sku);
    if (!constants) return rates;
    size_t known = 0;
    for (const RateField& field : kRateFields) {
        if (!constants->contains(field.name)) continue;
        rates.*field.member = parse_number(field.name, (*constants)[field.name]);
        ++known;
    }
    if (known != constants->size())
        throw Error(ErrorKind::kArgument, "constants: holds an unknown name; use those of heuristic_constants()");
    return rates;
}

// The revision of the formulas and a GPU's constants, each on a line: what heuristic_version is a hash of.
std::string heuristic_text(const std::string& sku) {
    std::string text = "revision=" + std::to_string(kHeuristicRevision) + '\n';
    const HeuristicRates& rates = base_rates(sku);
    for (const RateField& field : kRateFields) {
        char line[96];
        std::snprintf(line, sizeof line, "%s=%.17g\n", field.name, rates.*field.member);
        text += line;
    }
    return text;
}

std::string hash_text(const std::string& text) {
    return py::module_::import("hashlib").attr("sha256")(py::bytes(text)).attr("hexdigest")().cast<std::string>();
}

}  // namespace

void bind_legality(py::module_& m) {
    m.attr("LAUNCH_ABI") = kLaunchAbi;
    m.attr("STAGE_K_BYTES") = kStageKBytes;
    m.attr("ANY_TILE_ALIGNMENT") = kAnyTileAlignment;
    m.attr("MIN_VECTOR_LOOP_COLUMNS") = kMinVectorLoopColumns;
    m.attr("SM_SMEM_BYTES") = kSmSmemBytes;
    m.attr("SMEM_RESERVED_BYTES") = kSmemReservedBytes;
    m.attr("TILE_QUEUE_BYTES") = kTileQueueBytes;
    m.def("is_legal", &is_legal, "problem"_a, "config"_a, "device"_a,
          "Return whether `config` may run; never depends on m, n or k.");
    m.def("is_worth_trying", &is_worth_trying, "problem"_a, "config"_a, "device"_a,
          "Return whether `config` is legal for this problem and not pointless: the learned choice is among such "
          "configs.");
    m.def("legality_reason", &legality_reason, "problem"_a, "config"_a, "device"_a,
          "Return '' for a legal config, else a sentence that says why not.");
    m.def(
        "stage_k", [](const std::string& op) { return stage_k(parse_op(op)); }, "op"_a,
        "Return the only legal block_k of an op kind. Raises: ProblemError.");
    m.def("smem_bytes", &smem_bytes, "problem"_a, "config"_a, "Return the dynamic shared memory of one CTA in bytes.");
    m.def("num_threads", &num_threads, "problem"_a, "config"_a, "Return the threads of one CTA.");
    m.def("columns_per_warpgroup", &columns_per_warpgroup, "config"_a,
          "Return the columns of the MMA that one math warpgroup of a product holds.");
    m.def("logits_columns", &logits_columns, "problem"_a, "config"_a,
          "Return the columns of the WGMMA of a kernel of attention logits.");
    m.def("logits_query_stages", &logits_query_stages, "problem"_a, "config"_a,
          "Return how many tiles of queries a kernel of attention logits keeps in shared memory.");
    m.def("is_pipelined", &is_pipelined, "problem"_a, "config"_a,
          "Return whether a math warpgroup holds two partial accumulators.");
    m.def("blocks_per_sm", &blocks_per_sm, "problem"_a, "config"_a,
          "Return how many CTAs share an SM, by their shared memory and registers.");
    m.def(
        "grid_revision", [](const std::string& op) { return grid_revision(op_kind(parse_op(op))); }, "op"_a,
        "Return the revision of how many CTAs of an op kind's grids share an SM. Raises: ProblemError for an unknown "
        "one.");
    m.def("is_staged", &is_staged, "problem"_a, "config"_a,
          "Return whether D leaves through a tile in shared memory by TMA, else by the threads' own stores.");
    m.def("has_two_d_tiles", &has_two_d_tiles, "problem"_a, "config"_a,
          "Return whether C is loaded one tile ahead, into a second tile of D in shared memory.");
    m.def("get_candidates", &get_candidates, "problem"_a, "device"_a,
          "Return the configs worth trying (at most 176), in a fixed order.");
    m.def("get_default_space", &get_default_space, "problem"_a, "device"_a,
          "Return every config that get_candidates can return on `device` for some problem of `problem`'s variant.");
}

// At worst all late tiles of a recipe are in front: of two vectors 128x152, alone and in a cluster, 64x224 and 64x256;
// with another ring, or split, they are behind other tiles.
constexpr size_t kNumRankedForPick = 8;

void bind_heuristic(py::module_& m) {
    m.def(
        "heuristic_version", [](const std::string& sku) { return hash_text(heuristic_text(sku)).substr(0, 16); },
        "sku"_a,
        "Return the identity of the heuristic's formulas for all products and of the constants that it has for a GPU; "
        "estimate_revision is that of formulas for one op kind.");
    m.attr("FEATURES_VERSION") = kFeaturesVersion;
    m.def(
        "estimate_revision", [](const std::string& op) { return estimate_revision(op_kind(parse_op(op))); }, "op"_a,
        "Return the revision of what only op kinds like this one are rated by. Raises: ProblemError for an unknown "
        "one.");
    m.def("heuristic_constants", &constants_dict, "sku"_a = "",
          "Return the constants that the heuristic has for a GPU, by name; an H200's where it has no others. They are "
          "given for the SMs, clock and memory of an H200.");
    m.def(
        "estimate_time_us",
        [](const Problem& problem, const Config& config, const Device& device,
           const std::optional<py::dict>& constants) {
            check_geometry(problem.op, config);
            return Estimator(rated(problem), device, rates_from(constants, device)).time_us(config);
        },
        "problem"_a, "config"_a, "device"_a, "constants"_a = py::none(),
        "Return the heuristic's predicted time in microseconds; `constants` replaces some of the "
        "device's heuristic_constants(). Raises: ConfigError, ArgumentError.");
    m.def(
        "estimate_times_us",
        [](const Problem& problem, const std::vector<Config>& configs, const Device& device,
           const std::optional<py::dict>& constants) {
            for (const Config& config : configs) check_geometry(problem.op, config);
            const Estimator estimator(rated(problem), device, rates_from(constants, device));
            std::vector<double> times;
            for (const Config& config : configs) times.push_back(estimator.time_us(config));
            return times;
        },
        "problem"_a, "configs"_a, "device"_a, "constants"_a = py::none(),
        "Return what estimate_time_us does for each of `configs`. Raises: ConfigError, ArgumentError.");
    m.def("with_loop_knobs", &with_loop_knobs, "problem"_a, "config"_a, "device"_a,
          "Return `config` with the knobs of the main loop that the heuristic would give it for `problem`.");
    m.def("without_loop_knobs", &without_loop_knobs, "config"_a,
          "Return the tile alone, which is what candidates are chosen and rated by.");
    m.def("second_tile_reason", &second_tile_reason, "problem"_a, "first"_a, "second"_a,
          "Return '' where a kernel can hold two legal configs, of which it takes one by the rows that groups have, "
          "else a sentence that says why not.");
    m.def("tiles_reason", &tiles_reason, "problem"_a, "first"_a, "second"_a, "device"_a,
          "Return '' where a kernel can be made of a config, or of two, else a sentence that says why not.");
    m.attr("MOST_GROUPS_OF_TWO_TILES") = kMostGroupsOfTwoTiles;
    m.def("second_tile_weight", &second_tile_weight, "problem"_a, "first"_a, "second"_a, "device"_a,
          "Return what a round of the second tile counts in rounds of the first one, where the kernel takes one.");
    m.def("name_tiles", &name_tiles, "first"_a, "second"_a = py::none(),
          "Return what texts call a kernel of one config or of two.");
    m.def(
        "find_second_tile", &find_second_tile, "problem"_a, "first"_a, "device"_a,
        "Return the second tile of a kernel of `first`, which takes one of both by the rows that its groups have: the "
        "config that gains most. None where the gain is small, for many masked groups, for groups with ends whose "
        "rows are said or fill the alignment, and for other op kinds.");
    m.def("get_analytic_config", &get_analytic_config, "problem"_a, "device"_a,
          "Return the heuristic's choice: the candidate with the smallest predicted time. Raises: DeviceError where "
          "none is legal.");
}

void bind_config_features(py::module_& m) {
    py::list late_kinds;
    for (const LateKind& kind : kLateKinds) late_kinds.append(py::make_tuple(kind.name, kind.feature, kind.least));
    m.attr("LATE_KINDS") = py::tuple(late_kinds);
    m.attr("TRAINED_SLACK") = kTrainedSlack;
    m.def("has_seen", &has_seen, "low"_a, "high"_a, "least"_a,
          "Return whether rows with at least `least` of a feature were among those of trees whose widened hull is "
          "low..high.");
    m.def(
        "get_shortlist",
        [](const Problem& problem, const Device& device, size_t count, bool adds, bool pairs, bool beside) {
            std::vector<Config> configs;
            for (const AnalyticChoice& one :
                 make_legal_shortlist(problem, device, std::clamp<size_t>(count, 1, kMaxCandidates),
                                      {.adds = adds, .pairs = pairs, .beside = beside}))
                configs.push_back(one.config);
            return configs;
        },
        "problem"_a, "device"_a, "count"_a, py::kw_only(), "adds"_a = true, "pairs"_a = true, "beside"_a = true,
        "Return what the learned choice chooses from, `count` configs: the candidates with the smallest predicted "
        "times, "
        "best first, each with the knobs of the main loop that the heuristic gives it and, where it gives some, also "
        "without; the first is the heuristic's choice. Left out are, unless `adds`, BF16 configs that add by TMA, "
        "unless `pairs`, pairs along m of contiguous groups, and, unless `beside`, FP8 tiles whose math warpgroups "
        "stand "
        "side by side: kinds that the trees do not know. Raises: DeviceError.");
    m.def("config_feature_names", &config_feature_names, "Return the names of the columns of get_config_features.");
    m.def(
        "get_config_features",
        [](const Problem& problem, const Device& device, const std::vector<Config>& configs) {
            for (const Config& config : configs) check_geometry(problem.op, config);
            const Estimator estimator(problem, device);
            const std::vector<AnalyticChoice> ranked = rank_candidates(problem, estimator, device, kNumRankedForPick);
            ConfigFeatures features(problem, estimator, find_feature_pick(ranked));
            py::array_t<double> rows({configs.size(), kNumConfigRow});
            for (size_t i = 0; i < configs.size(); ++i) {
                double* row = std::copy_n(features.shared(), kNumSharedFeatures, rows.mutable_data(i, 0));
                features.write_own({configs[i], find_facts(problem, configs[i]), estimator.time_us(configs[i])}, row,
                                   1);
            }
            return rows;
        },
        "problem"_a, "device"_a, "configs"_a,
        "Return what is known of configs before they run, F64[len(configs), F]: sizes, flags, tiles and the parts of "
        "the predicted time. Raises: ConfigError, DeviceError.");
}

}  // namespace deep_gemm
