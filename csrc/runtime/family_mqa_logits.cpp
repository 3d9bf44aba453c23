// Attention index logits: [tokens, columns] of queries [tokens, heads, head_dim] over keys [n, head_dim], or of queries
// [sequences, next_n, heads, head_dim] over keys in pages [pages, block_kv, 1, head_dim + 4].
#include <string>
#include <utility>
#include <vector>

#include "core/logits.hpp"
#include "runtime/arguments.hpp"
#include "runtime/family.hpp"
#include "runtime/logits.hpp"
#include "runtime/operand_checks.hpp"
#include "runtime/operand_text.hpp"
#include "runtime/policy.hpp"
#include "runtime/torch_calls.hpp"

namespace deep_gemm {
namespace {

constexpr int64_t kScaleBytes = 4;  // of each key in a page

bool is_paged(const Call& call) { return op_kind(call.op).is_paged(); }

void check_devices(const Call& call) {
    for (const Operand* operand : {&call.b, &call.scale_b, &call.scale_a, &call.d})
        if (operand->is_present()) check_device(*operand, call.a);
    for (const Operand& operand : *call.logits)
        if (operand.is_present()) check_device(operand, call.a);
}

void check_dtypes(const Call& call) {
    constexpr const char* kQuantise = "quantise it, e.g. with per_custom_dims_cast_to_fp8; FP4 is SM100 only.";
    check_dtype(call.a, Dtype::kFloat8E4M3, kQuantise);
    if (is_paged(call))
        check_dtype(call.b, Dtype::kUint8, "pass pages of FP8 keys and FP32 scales as bytes, with .view(torch.uint8).");
    else
        check_dtype(call.b, Dtype::kFloat8E4M3, kQuantise);
    for (const Operand* operand : {&call.scale_a, &call.scale_b})
        if (operand->is_present()) check_dtype(*operand, Dtype::kFloat32, "convert it with .float().");
    for (const Operand& operand : *call.logits)
        if (operand.is_present()) check_dtype(operand, Dtype::kInt32, "convert it with .int().");
}

void check_rank(const Operand& operand, std::initializer_list<Dim> dims) {
    if (operand.is_present() && operand.view.rank != int(dims.size())) fail_rank(operand, dims);
}

void check_shape(const Operand& operand, std::initializer_list<Dim> dims) {
    check_rank(operand, dims);
    if (!operand.is_present()) return;
    size_t i = 0;
    for (const Dim& dim : dims)
        if (operand.view.shape[i++] != dim.size) fail_dims(operand, dims);
}

void check_heads(const QuerySizes& query) {
    if (query.heads < 1 || query.heads > Problem::kMaxHeads || query.heads % Problem::kHeadsUnit != 0)
        fail_shape("heads = " + std::to_string(query.heads) +
                   ": must be a multiple of 8 within 8..128; pad the heads of q with zeros, and their weights.");
    if (!Problem::is_head_size(query.head_dim))
        fail_shape("head_dim = " + std::to_string(query.head_dim) +
                   ": must be 32, 64 or 128; pad q and the keys with zeros.");
    check_limit("tokens", query.tokens);
}

void check_result(const Call& call, const QuerySizes& query) {
    if (!call.d.is_present()) return;
    check_shape(call.d, {{"tokens", query.tokens}, {"columns", call.logits->columns}});
    const Dtype dtype = call.d.view.dtype;
    if (dtype != Dtype::kBfloat16 && dtype != Dtype::kFloat32)
        fail_dtype(call.d, "must be torch.bfloat16 or torch.float32; allocate it as one of them.");
}

// Kernels divide their work in units of 64 positions of a row, and count those of all rows in 32 bits. `rows` may have
// `columns` positions each, and cost some units besides.
void check_units(const char* rows, int64_t num_rows, const char* columns, int64_t num_columns) {
    constexpr int64_t kMostUnits = (int64_t(1) << 32) - 1,
                      kMostCost = 4;  // _SEGMENT_COST in deep_gemm/jit/generator.py
    const int64_t units = (num_columns + kKeysPerStage - 1) / kKeysPerStage + kMostCost;
    if (num_rows <= kMostUnits / units) return;
    fail_shape(std::string(rows) + " = " + std::to_string(num_rows) + ", " + columns + " = " +
               std::to_string(num_columns) +
               ": kernels count units of 64 positions in 32 bits, so that all rows must have fewer than 2^38 "
               "positions; pass fewer rows at a time.");
}

Sizes check_unpaged(const Call& call) {
    check_rank(call.a, {{"tokens", 0}, {"heads", 0}, {"head_dim", 0}});
    const QuerySizes query = query_sizes(call);
    check_heads(query);
    check_rank(call.b, {{"n", 0}, {"head_dim", 0}});
    const int64_t n = call.b.view.shape[0];
    check_limit("n", n);
    check_shape(call.b, {{"n", n}, {"head_dim", query.head_dim}});
    check_shape(call.scale_b, {{"n", n}});
    check_shape(call.scale_a, {{"tokens", query.tokens}, {"heads", query.heads}});
    for (const Operand* range : {&call.logits->first, &call.logits->second})
        check_shape(*range, {{"tokens", query.tokens}});
    if (!call.logits->is_compressed) call.logits->columns = n;
    check_limit("columns", call.logits->columns);
    check_units("tokens", query.tokens, "columns", call.logits->columns);
    return {query.tokens, call.logits->columns == 0 ? 0 : n, query.head_dim};
}

void check_pages(const Operand& pages, int64_t head_dim) {
    check_rank(pages, {{"pages", 0}, {"block_kv", 0}, {"1", 1}, {"head_dim + 4", 0}});
    const int64_t block_kv = pages.view.shape[1];
    if (!Problem::is_page_size(block_kv))
        fail_shape("kv_cache.shape[1] = " + std::to_string(block_kv) +
                   ": a page must hold 32 or 64 keys; use such a block_kv.");
    check_shape(
        pages,
        {{"pages", pages.view.shape[0]}, {"block_kv", block_kv}, {"1", 1}, {"head_dim + 4", head_dim + kScaleBytes}});
    check_limit("pages", pages.view.shape[0]);
}

void check_sequences(const Call& call, const QuerySizes& query) {
    const int64_t sequences = call.a.view.shape[0];
    const LogitsOperands& logits = *call.logits;
    if (logits.first.view.rank == 1)
        check_shape(logits.first, {{"sequences", sequences}});
    else
        check_shape(logits.first, {{"sequences", sequences}, {"next_n", query.next_n}});
    check_rank(logits.second, {{"sequences", 0}, {"pages of a sequence", 0}});
    check_shape(logits.second, {{"sequences", sequences}, {"pages of a sequence", logits.second.view.shape[1]}});
    check_limit("block_table.shape[1]", logits.second.view.shape[1]);
    check_shape(logits.indices, {{"sequences", sequences}});
}

void check_schedule(const Operand& schedule) {
    check_rank(schedule, {{"num_sms + 1", 0}, {"2", 2}});
    const TensorView& view = schedule.view;
    if (view.shape[0] < 2 || view.shape[1] != 2)
        fail_shape("schedule_meta.shape = " + shape_text(schedule) +
                   ": must be [num_sms + 1, 2] with num_sms >= 1; pass the result of get_paged_mqa_logits_metadata.");
}

Sizes check_paged(const Call& call) {
    check_rank(call.a, {{"sequences", 0}, {"next_n", 0}, {"heads", 0}, {"head_dim", 0}});
    const QuerySizes query = query_sizes(call);
    check_heads(query);
    if (query.next_n < 1 || query.next_n > Problem::kMaxNextN)
        fail_shape("next_n = " + std::to_string(query.next_n) +
                   ": must be within 1..8; pass the tokens of longer sequences as sequences of their own.");
    check_pages(call.b, query.head_dim);
    check_shape(call.scale_a, {{"sequences * next_n", query.tokens}, {"heads", query.heads}});
    check_sequences(call, query);
    check_units("sequences", call.a.view.shape[0], "max_context_len", call.logits->columns);
    check_schedule(call.logits->schedule);
    return {query.tokens, call.logits->columns, query.head_dim};
}

Sizes check_operands(const Call& call) {
    check_devices(call);
    check_dtypes(call);
    const Sizes sizes = is_paged(call) ? check_paged(call) : check_unpaged(call);
    check_result(call, query_sizes(call));
    return sizes;
}

void check_contiguous_dim(const Operand& operand, int dim, int64_t stride, const char* what) {
    const TensorView& view = operand.view;
    if (view.shape[dim] <= 1 || view.strides[dim] == stride) return;
    fail_layout(stride_text(operand, dim) + ": " + what + " must be contiguous, " + std::to_string(stride) +
                " apart; pass " + operand.name + ".contiguous().");
}

void check_step(const Operand& operand, int dim, int64_t least) {
    const TensorView& view = operand.view;
    const int64_t stride = view.strides[dim];
    if (view.shape[dim] <= 1 || (stride % kPitchAlignment == 0 && stride >= least)) return;
    fail_layout(stride_text(operand, dim) + ": must be a multiple of 16 bytes, and at least " + std::to_string(least) +
                "; pass " + operand.name + ".contiguous().");
}

// Heads and tokens lie at any pitch that TMA takes; the tokens of all sequences at the same.
void check_queries(const Operand& q) {
    const TensorView& view = q.view;
    const int head = view.rank - 2, token = view.rank - 3;
    check_contiguous_dim(q, view.rank - 1, 1, "head_dim");
    check_step(q, head, view.shape[view.rank - 1]);
    check_step(q, token, view.shape[view.rank - 1]);
    if (token == 1 && view.shape[1] > 1) check_contiguous_dim(q, 0, view.shape[1] * view.strides[1], "sequences");
    if (token == 1) check_step(q, 0, view.shape[view.rank - 1]);
    check_alignment(q, kPitchAlignment);
}

void check_cache(const Operand& cache) {
    const TensorView& view = cache.view;
    check_contiguous_dim(cache, 3, 1, "the bytes of a key");
    check_contiguous_dim(cache, 1, view.shape[3], "the keys of a page");
    check_step(cache, 0, view.shape[1] * view.shape[3]);
    check_alignment(cache, kPitchAlignment);
}

void check_ranges(const Call& call) {
    const LogitsOperands& logits = *call.logits;
    for (const Operand& operand : logits)
        if (operand.is_present()) check_alignment(operand, sizeof(int32_t));
    if (!is_paged(call)) return check_contiguous(logits.first), check_contiguous(logits.second);
    if (logits.first.view.rank == 2) check_contiguous_dim(logits.first, 1, 1, "the lengths of a sequence");
    check_contiguous_dim(logits.second, 1, 1, "the pages of a sequence");
    check_contiguous_dim(logits.schedule, 1, 1, "a row");
    check_contiguous_dim(logits.schedule, 0, 2, "rows");
    if (logits.indices.is_present()) check_contiguous(logits.indices);
}

Layouts check_layout(const Call& call, const Sizes&, const Layouts&) {
    check_queries(call.a);
    check_rows(call.scale_a, "heads");
    check_alignment(call.scale_a, kPitchAlignment);
    if (is_paged(call)) {
        check_cache(call.b);
    } else {
        check_rows(call.b, "head_dim");
        check_alignment(call.b, kPitchAlignment);
        check_contiguous(call.scale_b);
        check_alignment(call.scale_b, kPitchAlignment);
    }
    check_ranges(call);
    if (call.d.is_present()) check_contiguous_rows(call.d, "columns");
    return {};
}

void make_result(Call& call, const Sizes& sizes) {
    LogitsOperands& logits = *call.logits;
    const TensorView& like = call.scale_a.view;
    if (is_given(call.stream) && like.device_kind == DeviceKind::kCuda)  // before memory is taken on it
        parse_stream(call.stream, like.ordinal, like.is_described);
    TakenMemory taken = make_logits(call.scale_a, sizes.m, logits.columns, logits.dtype, call.stream);
    call.d.name = "logits", call.d.object = taken.tensor.get(), call.d.view = taken.view;
    logits.result = std::move(taken.tensor);
}

Reference bool_of(bool value) { return Reference::borrow(value ? Py_True : Py_False); }

void run_on_cpu(const Call& call, const Sizes&) {
    const LogitsOperands& logits = *call.logits;
    const bool has_pages = is_paged(call);
    const Reference named = Reference::take(PyDict_New());
    set_item(named.get(), "q", tensor_of(call.a));
    set_item(named.get(), has_pages ? "kv_cache" : "kv", tensor_of(call.b));
    set_item(named.get(), "weights", tensor_of(call.scale_a));
    set_item(named.get(), has_pages ? "context_lens" : "starts", tensor_of(logits.first));
    set_item(named.get(), has_pages ? "block_table" : "ends", tensor_of(logits.second));
    set_item(named.get(), "d", tensor_of(call.d));
    set_item(named.get(), "is_clean", bool_of(logits.is_clean));
    if (!has_pages) {
        set_item(named.get(), "scale_kv", tensor_of(call.scale_b));
        set_item(named.get(), "is_compressed", bool_of(logits.is_compressed));
    }
    run_reference(call.op, named.get(), Py_None);
}

// Sizes change with every call of a model; choices hardly depend on them, so that rounding keeps the dispatch table
// small. Sequences of paged calls are few.
Problem make_problem(int sm_count, const Call& call, const Sizes& sizes, const Layouts&) {
    const QuerySizes query = query_sizes(call);
    const bool has_pages = is_paged(call);
    return {.op = call.op,
            .m = has_pages ? sizes.m : round_expected_m(sizes.m, Problem::kMaxDim),
            .n = round_expected_m(sizes.n, Problem::kMaxDim),
            .k = sizes.k,
            .num_sms = get_sm_limit(sm_count),
            .d_dtype = call.d.view.dtype == Dtype::kFloat32 ? DDtype::kFp32 : DDtype::kBf16,
            .batch_invariant = is_batch_invariant(op_kind(call.op)),
            .heads = int32_t(query.heads),
            .next_n = int32_t(query.next_n),
            .block_kv = has_pages ? int32_t(call.b.view.shape[1]) : 0};
}

void launch(const LoadedKernel& kernel, const LaunchGeometry& geometry, Call& call, const Sizes&, const Layouts&, int,
            void* stream) {
    launch_logits(kernel, geometry, call, stream);
}

}  // namespace

QuerySizes query_sizes(const Call& call) {
    const auto& shape = call.a.view.shape;
    if (is_paged(call)) return {shape[0] * shape[1], shape[2], shape[3], shape[1]};
    return {shape[0], shape[1], shape[2]};
}

const Steps kLogitsSteps{.check_operands = &check_operands,
                         .check_layout = &check_layout,
                         .make_result = &make_result,
                         .run_on_cpu = &run_on_cpu,
                         .make_problem = &make_problem,
                         .launch = &launch};

const Family kLogitsFamily{.steps = &kLogitsSteps};

}  // namespace deep_gemm
