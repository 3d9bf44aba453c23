#include "runtime/sum_products.hpp"

#include <algorithm>

#include "runtime/operand_checks.hpp"

namespace deep_gemm {
namespace {

// As in sum_products.cuh.
constexpr unsigned kThreads = 256;
constexpr int64_t kTile = 32, kChunk = 32, kElementsOfLoad = 8;
constexpr int64_t kParts = 8;         // CTAs of a cluster: as many as every GPU places
constexpr int64_t kMostChunks = 256;  // of K in all: a CTA's share is 128 KiB

// Elements from one matrix to the next; 0 for the one matrix of a single group.
int64_t group_pitch(const TensorView& view) { return view.shape[0] > 1 ? view.strides[0] : 0; }
int64_t pitch(const TensorView& view) { return view.shape[1] > 1 ? view.strides[1] : 0; }

}  // namespace

PlainKernel& sum_products_kernel(const SumVariant& variant) {
    static SumKernels kernels("sum_products", {{"kParts", kParts}});
    return kernels.of(variant);
}

bool is_small_sum(const Problem& problem, int sm_count) {
    if (!op_kind(problem.op).is_summed() || problem.batch_invariant) return false;
    const bool is_loadable =
        problem.a_major == Major::kK && problem.b_major == Major::kK && problem.k % kElementsOfLoad == 0;
    // A cluster waits for SMs of one GPC, and beside a limit on SMs something else may hold on to them.
    const bool is_whole = sm_count >= kWholeGpuSms && (problem.num_sms == 0 || problem.num_sms >= sm_count);
    const int64_t tiles = ceil_div(problem.m, kTile) * ceil_div(problem.n, kTile);
    const int64_t chunks = problem.num_groups * ceil_div(problem.k, kChunk);
    return is_loadable && is_whole && tiles * kParts <= sm_count && chunks <= kMostChunks;
}

void launch_small_sum(const Gpu& gpu, const Call& call, const Sizes& sizes, void* stream) {
    const TensorView &view_a = call.a.view, &view_b = call.b.view;
    uint64_t a = view_a.address, b = view_b.address, c = call.c.view.address, d = call.d.view.address;
    int64_t a_group_pitch = group_pitch(view_a), a_pitch = pitch(view_a);
    int64_t b_group_pitch = group_pitch(view_b), b_pitch = pitch(view_b);
    int64_t c_pitch = call.c.view.strides[0], d_pitch = call.d.view.strides[0];
    uint32_t num_groups = uint32_t(sizes.num_groups), m = uint32_t(sizes.m), n = uint32_t(sizes.n);
    uint32_t k = uint32_t(sizes.k);
    void* arguments[] = {
        &a,          &b, &c, &d, &a_group_pitch, &a_pitch, &b_group_pitch, &b_pitch, &c_pitch, &d_pitch,
        &num_groups, &m, &n, &k};
    const PlainGrid grid{unsigned(kParts), unsigned(ceil_div(sizes.n, kTile)), unsigned(ceil_div(sizes.m, kTile))};
    launch_plain(sum_products_kernel(sum_variant(call)), gpu, {.grid = grid, .threads = kThreads}, arguments, stream);
}

}  // namespace deep_gemm
