"""The defects of C++, each of which compiles one file; as in defects.py."""

from tests.mutation.defects import Defects

_LEGALITY = "tests/cpu/core/test_legality.py tests/cpu/core/test_candidates.py"
_ARGUMENTS = (
    "tests/cpu/runtime/test_arguments.py tests/cpu/runtime/test_arguments_variants.py tests/fault/test_overlap.py"
)

NATIVE_DEFECTS: Defects = {
    ("csrc/core/legality.cpp", _LEGALITY): [
        (
            "if (rows != 64 && rows != 128 && rows != 256)",
            "if (rows != 64 && rows != 128 && rows != 256 && rows != 192)",
        ),
        ("columns % 8 != 0) return Rule::kColumns", "columns % 4 != 0) return Rule::kColumns"),
        ("config.cluster_m * config.cluster_n <= 2", "config.cluster_m * config.cluster_n <= 4"),
        (
            "config.block_n % 16 != 0) return Rule::kClusterBlockN",
            "config.block_n % 8 != 0) return Rule::kClusterBlockN",
        ),
        ("kRegisterLimitTwoWarpgroups = 232", "kRegisterLimitTwoWarpgroups = 240"),
    ],
    ("csrc/core/grid.cpp", "tests/cpu/runtime/test_dense_grids.py"): [
        ("kAlone = 1.25", "kAlone = 1.0"),
        ("of_sm <= fewest", "of_sm < fewest"),
        ("m_tiles > 1 || ", ""),
        ("if (config.cluster_m * config.cluster_n > 1) return 1;", ""),
        ("std::min(fitting, register_blocks)", "fitting"),
    ],
    ("csrc/core/candidates.cpp", "tests/cpu/runtime/test_dense_grids.py"): [
        ("return is_limited || dense", "return dense"),
        ("is_grouped(variant.op) || blocks_per_sm(variant, config) >= blocks", "true"),
        ("sms, fitting) == 1", "sms, fitting) == 2"),
    ],
    ("csrc/core/row_draws.cpp", "tests/cpu/core/test_group_estimates.py"): [
        ("full * below * below", "0.0"),
        ("std::sqrt(groups * one.variance)", "std::sqrt(one.variance)"),
        ("round_half_up(draws.mean + deviation * kQuantiles[i])", "draws.mean + deviation * kQuantiles[i]"),
        ("problem.num_groups == 1", "false"),
    ],
    ("csrc/core/second_tile.cpp", "tests/cpu/core/test_second_tile.py tests/cpu/runtime/test_second_tile.py"): [
        ("if (facts.blocks_per_sm == 1) terms.memory_us = estimator.memory_us(drawn.unfilled);", ""),
        ("kLeastGain = 0.02;", "kLeastGain = 0.0;"),
        ("kMargin = 1.02;", "kMargin = 1.2;"),
        ("if (!is_single(config))", "if (false)"),
        ("problem.num_groups > kMostGroupsOfTwoTiles)", "problem.num_groups > kMostGroupsOfTwoTiles + 1)"),
        ("if (blocks_per_sm(problem, first) != blocks_per_sm(problem, second))", "if (false)"),
    ],
    ("csrc/runtime/launch.cpp", "tests/cpu/emulator/test_emulated_tile_choice.py"): [
        ("params.num_n_tiles = geometry.num_n_tiles, ", ""),
        (".weight = float(second_tile_weight(", ".weight = 0.0f * float(second_tile_weight("),
    ],
    ("csrc/core/second_tile.cpp", "tests/cpu/runtime/test_signals.py"): [
        ("    if (problem.has_signals) return std::nullopt;\n", ""),
    ],
    ("csrc/runtime/signals.cpp", "tests/cpu/runtime/test_signals.py"): [
        ("count_elements(signal.view) >= wanted)", "count_elements(signal.view) + 1 >= wanted)"),
        ("operand.is_present() && count_elements(operand.view) > 0)", "operand.object == call.groups.object)"),
        ("    check_contiguous(call.signal);\n", ""),
    ],
    ("csrc/core/device.cpp", "tests/cpu/core/test_device.py"): [
        ("uint64_t(default_mw) * 95)", "uint64_t(default_mw) * 94)"),
        ("(limit_mw + kStepMw / 2) / kStepMw", "limit_mw / kStepMw"),
        ("            device.sku += full.substr(name.size());\n", ""),
    ],
    ("csrc/selector/selector.cpp", "tests/cpu/selector/test_selection.py"): [
        (" && base_sku(device.sku) != origin_.sku)", ")"),
    ],
    ("csrc/runtime/overlap.cpp", _ARGUMENTS): [
        (" && offset + extent_bytes(high, 1) <= pitch", ""),
        ("offset >= extent_bytes(low, 1) && ", ""),
        (
            "if (high.address - low.address >= extent_bytes(low, 0))",
            "if (high.address - low.address > extent_bytes(low, 0))",
        ),
    ],
    ("csrc/runtime/dispatch.cpp", "tests/cpu/runtime/test_dispatch.py"): [
        (
            "found != table().entries.end()) return found->second;\n",
            "false) return found->second;\n",
        ),
        ("    ++table().misses;\n", ""),
        ("if (entries.size() >= kCapacity)", "if (entries.size() > kCapacity)"),
    ],
    ("csrc/runtime/tensor_view.cpp", "tests/fault/test_native_objects.py"): [
        ("view.device_kind == DeviceKind::kMeta || !has_elements(view)) return;", "true) return;"),
    ],
    ("csrc/core/python.cpp", "tests/fault/test_native_objects.py"): [
        ("        if (holds_tensor(object)) ", "        if (false) "),
        ("    if (depth == 0) return true;\n", "    if (depth == 0) return false;\n"),
    ],
    ("csrc/core/bind_errors.cpp", "tests/fault/test_native_objects.py"): [
        ("        if (holds_tensor(arguments[i])) return true;\n", ""),
        ("        if (record.is_operator) return Py_NewRef(Py_NotImplemented);\n", ""),
        ("record.is_method ? 1 : 0; i < count", "0; i < count"),
    ],
    ("csrc/runtime/planned_call.cpp", "tests/cpu/runtime/test_planned_calls.py"): [
        (" || overlaps(call, arguments)) Py_RETURN", ") Py_RETURN"),
        ("if (i != d && arguments.is_tensor[i] && may", "if (i > d && arguments.is_tensor[i] && may"),
        ("return view.ordinal == first->ordinal && ", "return "),
        ("    if (plan->is_declined) Py_RETURN_NOTIMPLEMENTED;\n", ""),
    ],
    ("csrc/runtime/launch.cpp", "tests/cpu/runtime/test_early_start.py"): [
        ("    if (!get_pdl()) return false;\n", ""),
        ("8 * geometry.num_ctas < 7 * sms", "8 * geometry.num_ctas < 8 * sms"),
        ("8 * geometry.num_ctas < 7 * sms || ", ""),
        ("kernel.blocks_per_sm > 1 || 2 * geometry.num_ctas <= sms;", "kernel.blocks_per_sm > 1;"),
        ("kernel.config.split_k == 1 || kernel.blocks_per_sm > 2", "kernel.config.split_k == 1"),
    ],
    ("csrc/runtime/band.cpp", "tests/cpu/runtime/test_tensor_map.py tests/cpu/runtime/test_grouped_launch.py"): [
        (" || tiles.may_have_less) return", ") return"),
        ("tiles.is_dense && tiles.memory_gbps > kFastMemoryGbps", "tiles.memory_gbps > kFastMemoryGbps"),
        ("tiles.is_dense && tiles.memory_gbps > kFastMemoryGbps", "tiles.is_dense"),
        ("tiles.group_tiles > 0 || tiles.all > kMaxGpcWaves", "tiles.all > kMaxGpcWaves"),
        ("tiles.all > kMaxGpcWaves * tiles.clusters", "tiles.all > (kMaxGpcWaves + 1) * tiles.clusters"),
        ("return b_again * lost_share(passed_in_band) + ", "return "),
        ("bands * matrices - mean_groups(tiles)", "bands - 1"),
        ("height % tiles.group_unit == 0 ? double(height) / unit - 1", "false ? 0.0"),
        ("double(columns) * mean_matrices(tiles, std::min(height, stop - begin))", "double(columns)"),
        ("bytes / kKeptBytes - kKeptBelow", "bytes / kKeptBytes"),
        ("i * waves / counted * tiles.clusters", "i * tiles.clusters"),
        ("std::max<int64_t>(1, kGpcCtas / cluster_size)", "kGpcCtas"),
        ("band == tiles.m || band == kMaxByteBand", "band == tiles.m || band == kMaxByteBand / 8"),
    ],
    ("csrc/runtime/launch.cpp", "tests/cpu/runtime/test_grouped_launch.py"): [
        ("std::max<int64_t>(1, problem.alignment / tile_rows)", "1"),
        ("ceil_div(group_tiles, unit) * unit", "group_tiles"),
    ],
    ("csrc/runtime/run.cpp", "tests/cpu/runtime/test_grouped_launch.py"): [
        (", problem.alignment = given.alignment", ""),
    ],
    ("csrc/selector/forest.cpp", "tests/cpu/selector/test_selector.py"): [
        ("__builtin_ctz(leaves[i][row])", "__builtin_ctz(leaves[i][row & 7])"),
        ("values <= node->threshold", "values < node->threshold"),
        ("above, leaves, _mm512_set1", "above, _mm512_set1_epi32(-1), _mm512_set1"),  # on a host with AVX-512
    ],
    (
        "csrc/runtime/family_mqa_logits.cpp",
        "tests/cpu/ops/test_mqa_logits.py tests/cpu/ops/test_record_on_cpu.py tests/cpu/runtime/test_logits_launch.py",
    ): [
        ("query.heads % Problem::kHeadsUnit != 0", "false"),
        ("    if (num_rows <= kMostUnits / units) return;\n", "    return;\n"),
        ("!Problem::is_page_size(block_kv))", "!Problem::is_page_size(block_kv) && block_kv != 16)"),
        ("view.shape[0] < 2 || view.shape[1] != 2", "view.shape[1] != 2"),
        ("    check_step(cache, 0, view.shape[1] * view.shape[3]);\n", ""),
        ("if (logits.first.view.rank == 2) check_contiguous_dim(", "if (false) check_contiguous_dim("),
        (".m = has_pages ? sizes.m : round_expected_m(sizes.m, Problem::kMaxDim)", ".m = sizes.m"),
        (".block_kv = has_pages ? int32_t(call.b.view.shape[1]) : 0", ".block_kv = has_pages ? 64 : 0"),
    ],
    ("csrc/runtime/launch_mqa_logits.cpp", "tests/cpu/runtime/test_logits_launch.py"): [
        ("        if (call.logits->is_clean) fill_with_infinity(call.d, stream);\n", ""),
        ("if (first.rank == 2) params.flags |= kLengthsPerToken;", ""),
        ("uint32_t(logits.schedule.view.shape[0] - 1)", "uint32_t(logits.schedule.view.shape[0])"),
        ("cache.address + rows * uint64_t(head_dim)", "cache.address"),
        ("view.rank == 4 && view.shape[1] == 1", "false"),
    ],
    (
        "csrc/core/config_features.cpp",
        "tests/cpu/core/test_config_features.py tests/cpu/core/test_features_frozen.py",
    ): [
        ("waves / std::ceil(waves)", "waves / std::floor(waves + 1.0)"),
        ("double(std::max<int64_t>(value, 1))", "double(value + 1)"),
        ("double(problem.n % kMaxAlignment)", "double(problem.n % 128)"),
        ("kLn2 * portable_log2(time_us / pick_us_)", "portable_log2(time_us / pick_us_)"),
        ("!has_same_tile(*rated_, config)", "rated_->block_m != config.block_m"),
    ],
    ("csrc/runtime/scale_copy.cpp", "tests/cpu/runtime/test_scale_copies.py"): [
        ("is_told ? round_expected_m(*call.expected_m, sizes.m)", "is_told ? *call.expected_m"),
        ("rows >= kLeastRowsOfGroup", "rows >= 1"),
        ("op_kind(call.op).has_room() ? call.groups.view.address : 0", "0"),
        ("out_group = row > 0 ? columns * pitch : 0", "out_group = row > 0 ? columns * rows + 4 : 0"),
        ("in_group = row > 0 ? view.strides[0] : 0", "in_group = row > 0 ? rows * columns : 0"),
        ("kind.has_room() ? rows_per_group(problem) : problem.m", "problem.m"),
    ],
    ("csrc/core/loop_rule.cpp", "tests/cpu/core/test_loop_knobs.py"): [
        ("steps >= kMinHalfAddSteps && config.swap_ab == 0", "steps >= kMinHalfAddSteps"),
        ("kMinHalfAddSteps = 20", "kMinHalfAddSteps = 19"),
        ("config.block_n == 136 || config.block_n == 152", "config.block_n == 136 || config.block_n == 144"),
        ("(config.block_n == 128 || config.block_n == 112)", "(config.block_n == 128)"),
        ("kMinNarrowLoopSteps = 60", "kMinNarrowLoopSteps = 61"),
        ("kMinNarrowLoopSteps = 60", "kMinNarrowLoopSteps = 59"),
        (
            "steps >= kScaleWarpStepsOfOne;\n        case 112: return is_dense(problem) || is_masked(problem);\n"
            "        case 128:",
            "false;\n        case 112: return is_dense(problem) || is_masked(problem);\n        case 128:",
        ),
        ("columns == 80 && stages == 7", "columns == 80"),
    ],
    ("csrc/core/shortlist.cpp", "tests/cpu/core/test_features_frozen.py"): [
        ("return !is_late_tile(choice.config);", "return true;"),
    ],
    ("csrc/core/heuristic.cpp", "tests/cpu/core/test_group_estimates.py"): [
        ("kLost = 0.35", "kLost = 0.34"),
        ("if (facts.blocks_per_sm == 1) tiling.unfilled", "tiling.unfilled"),
        ("if (!is_masked_ || config.num_stages > 3)", "if (config.num_stages > 3)"),
        ("config.num_stages == 3 ? 1.08 : 1.35", "config.num_stages == 3 ? 1.08 : 1.08"),
        ("mean.unfilled += rows.draws[i].share * drawn.unfilled", "mean.unfilled = drawn.unfilled"),
    ],
    ("csrc/core/heuristic.cpp", "tests/fault/test_native_objects.py"): [
        ("? kMost : std::min(product, kMost)", "? 1 : std::min(product, kMost)"),
    ],
}
