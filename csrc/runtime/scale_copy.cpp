#include "runtime/scale_copy.hpp"

#include <algorithm>
#include <limits>

#include "runtime/checks.hpp"
#include "runtime/operand_checks.hpp"
#include "runtime/plain_kernel.hpp"
#include "runtime/plan.hpp"
#include "runtime/policy.hpp"
#include "runtime/torch_calls.hpp"

namespace deep_gemm {
namespace {

constexpr int64_t kTileRows = 64, kTileColumns = 64;  // of a CTA: scale_layout.cuh
constexpr unsigned kThreads = 256;
constexpr int64_t kMaxGridY = 65535;   // CUDA programming guide, "Technical Specifications"
constexpr int64_t kWordsOfVector = 4;  // in 16 bytes
// With fewer columns of D the scales are much of all that is read.
constexpr int64_t kLeastColumns = 1024;
// Masked groups of fewer rows wait for their weights, not for scales (H200, 32 groups of 20: 1.00 of the time).
constexpr int64_t kLeastRowsOfGroup = 64;

PlainKernel& copying_kernel(bool is_aligned) {
    static PlainKernel any("scale_layout", {{"kPack", 0}, {"kAligned", 0}});
    static PlainKernel aligned("scale_layout", {{"kPack", 0}, {"kAligned", 1}});
    return is_aligned ? aligned : any;
}

// Scales [mn, k] of an operand, or [groups, mn, k].
bool is_copied(const Operand& scales) {
    const TensorView& view = scales.view;
    const int row = view.rank - 2;
    return row >= 0 && !is_mn_major(view) && view.strides[row + 1] == 1 &&
           ceil_div(view.shape[row], kTileRows) <= kMaxGridY && (row == 0 || view.shape[0] <= kMaxGridY);
}

bool is_good_or_copied(const Operand& scales) { return is_mn_major(scales.view) || is_copied(scales); }

bool is_aligned(const TensorView& view) {
    const int row = view.rank - 2;
    return view.shape[row + 1] % kWordsOfVector == 0 && view.strides[row] % kWordsOfVector == 0 &&
           (row == 0 || view.strides[0] % kWordsOfVector == 0) && view.address % kPitchAlignment == 0;
}

// Op kinds whose scales may be copied: all rows of A are those of one matrix, and so are their scales; or groups say on
// the device how many rows they have, and the others are not copied.
bool may_copy(const OpKind& kind) {
    return kind.form == Form::kProduct &&
           (kind.grouping == Grouping::kNone || kind.grouping == Grouping::kMContiguous ||
            kind.grouping == Grouping::kMPsum || kind.has_room());
}

// Whether scales of any layout are copied for `rows` rows of A, as many as are expected: of all, or of each of the
// masked groups.
bool is_worth_copies(const OpKind& kind, int64_t rows, int64_t num_groups, int64_t n, int64_t k) {
    const bool has_room = kind.has_room();
    const double all_rows = double(rows) * double(has_room ? num_groups : 1);
    return may_copy(kind) && n >= kLeastColumns && (!has_room || rows >= kLeastRowsOfGroup) &&
           all_rows * double(n) * double(k) >= get_scale_copy_work() &&
           get_sm_limit(std::numeric_limits<int>::max()) == 0;
}

int64_t count_rows(const Call& call, const Sizes& sizes) {
    const bool is_told = op_kind(call.op).has_room() && call.expected_m;
    return is_told ? round_expected_m(*call.expected_m, sizes.m) : sizes.m;
}

// Scales that may be copied, of a call that may be const; null where there are none.
template <class AnyCall>
auto scales_of(AnyCall& call) {
    return std::array{&call.scale_a, call.recipe == Recipe::k1d1d ? &call.scale_b : nullptr};
}

// Tiles share the columns evenly, in whole vectors where these are loaded.
uint32_t choose_width(int64_t columns, int64_t tiles, bool is_aligned) {
    const int64_t width = ceil_div(columns, tiles);
    return uint32_t(is_aligned ? ceil_div(width, kWordsOfVector) * kWordsOfVector : width);
}

// `sizes`: the address of the rows that each group has, or 0 where all are copied.
Reference copy(const Gpu& gpu, Operand& scales, uint64_t sizes, void* stream, PyObject* handle) {
    TensorView& view = scales.view;
    const bool has_vectors = is_aligned(view);
    PlainKernel& kernel = copying_kernel(has_vectors);
    kernel.get(gpu);  // before memory is taken: compiling may fail
    const int row = view.rank - 2;
    const int64_t groups = row > 0 ? view.shape[0] : 1, rows = view.shape[row], columns = view.shape[row + 1];
    int64_t pitch = ceil_div(rows, kWordsOfVector) * kWordsOfVector;
    int64_t in_group = row > 0 ? view.strides[0] : 0, in_row = view.strides[row],
            out_group = row > 0 ? columns * pitch : 0;
    const int64_t tiles = ceil_div(columns, kTileColumns);
    uint32_t mn = uint32_t(rows), k = uint32_t(columns), width = choose_width(columns, tiles, has_vectors);
    Reference memory = empty_fp8(groups * columns, pitch * int64_t(sizeof(float)), view.ordinal, handle);
    uint64_t in = view.address, out = make_operand(scales.name, memory.get()).view.address;
    void* arguments[] = {&in, &out, &sizes, &mn, &k, &width, &in_group, &in_row, &out_group, &pitch};
    const PlainShape shape{.grid = {unsigned(tiles), unsigned(ceil_div(rows, kTileRows)), unsigned(groups)},
                           .threads = kThreads};
    launch_plain(kernel, gpu, shape, arguments, stream);
    view.address = out, view.strides[row] = 1, view.strides[row + 1] = pitch;
    if (row > 0) view.strides[0] = out_group;
    return memory;
}

// Whether the pending exception, which stays, says that a kernel does not compile.
bool is_compile_error() {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    const Reference expected = import_attribute("deep_gemm.errors", "CompileError");
    const bool is_one = PyErr_GivenExceptionMatches(type, expected.get()) != 0;
    PyErr_Restore(type, value, trace);
    return is_one;
}

// Whether the pass is there for a call, which loads it. Where it does not compile, the scales are read where they are.
bool has_kernels(const Gpu& gpu, const Call& call) {
    static bool is_broken = false;
    if (is_broken) return false;
    try {
        for (const Operand* scales : scales_of(call))
            if (scales != nullptr && is_copied(*scales)) copying_kernel(is_aligned(scales->view)).get(gpu);
        return true;
    } catch (const PythonError&) {
        if (!is_compile_error()) throw;
        is_broken = true;
        note_missing_copies(take_error_text());
        return false;
    }
}

}  // namespace

Layouts with_scale_copies(const Gpu& gpu, const Call& call, const Sizes& sizes, const Layouts& layouts) {
    Layouts found = layouts;
    if (layouts.scales == ScaleLayout::kMnMajor ||
        !is_worth_copies(op_kind(call.op), count_rows(call, sizes), sizes.num_groups, sizes.n, sizes.k))
        return found;
    if (!is_good_or_copied(call.scale_a)) return found;
    // Those of B are not copied for groups, each of which has its own.
    const bool has_one_b = op_kind(call.op).grouping == Grouping::kNone;
    const bool is_b_good = is_mn_major(call.scale_b.view) || (has_one_b && is_copied(call.scale_b));
    if (call.recipe == Recipe::k1d1d && !is_b_good) return found;
    if (has_kernels(gpu, call)) found.scales = ScaleLayout::kMnMajor;
    return found;
}

Problem with_scale_copies(const Problem& problem) {
    Problem found = problem;
    const OpKind& kind = op_kind(problem.op);
    const bool has_vectors = problem.recipe != Recipe::k1d1d || kind.grouping == Grouping::kNone;
    const int64_t rows = kind.has_room() ? rows_per_group(problem) : problem.m;
    if (problem.scale_layout == ScaleLayout::kAny && problem.num_sms == 0 && has_vectors &&
        is_worth_copies(kind, rows, problem.num_groups, problem.n, problem.k))
        found.scale_layout = ScaleLayout::kMnMajor;
    return found;
}

bool needs_scale_copies(const Call& call, const Layouts& layouts) {
    return layouts.scales == ScaleLayout::kMnMajor && scale_layout(call) == ScaleLayout::kAny;
}

void load_scale_copy_kernels(const Gpu& gpu) {
    for (const bool has_vectors : {false, true}) copying_kernel(has_vectors).get(gpu);
}

ScaleMemory copy_scales(const Gpu& gpu, Call& call, void* stream, PyObject* handle) {
    ScaleMemory memory;
    const uint64_t sizes = op_kind(call.op).has_room() ? call.groups.view.address : 0;
    const auto operands = scales_of(call);
    for (size_t i = 0; i < operands.size(); ++i) {
        Operand* scales = operands[i];
        if (scales != nullptr && is_copied(*scales)) memory[i] = copy(gpu, *scales, sizes, stream, handle);
    }
    return memory;
}

}  // namespace deep_gemm
