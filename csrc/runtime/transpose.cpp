#include "runtime/transpose.hpp"

#include <algorithm>

#include "core/problem.hpp"
#include "runtime/operand_checks.hpp"
#include "runtime/plain_kernel.hpp"
#include "runtime/torch_calls.hpp"

namespace deep_gemm {
namespace {

constexpr int64_t kTile = 128;  // a CTA transposes 128 x 128 bytes at a time
constexpr unsigned kThreads = 256;
// More tiles than the memory of a GPU holds; CUDA programming guide, "Technical Specifications".
constexpr int64_t kMaxGrid = INT32_MAX;

PlainKernel& transposing_kernel() {
    static PlainKernel kernel("transpose_fp8");
    return kernel;
}

// CTAs walk the tiles, so that any grid is right. One CTA for each SM allowed never takes more SMs than that.
unsigned choose_grid(const TensorView& in, int num_sms) {
    const int64_t tiles = ceil_div(in.shape[0], kTile) * ceil_div(in.shape[1], kTile);
    return unsigned(std::min(tiles, num_sms > 0 ? int64_t(num_sms) : kMaxGrid));
}

void launch(const Gpu& gpu, const TensorView& in, const TensorView& out, int num_sms, void* stream) {
    uint64_t from = in.address, to = out.address;
    int64_t in_pitch = row_pitch_bytes(in), out_pitch = row_pitch_bytes(out);
    uint32_t rows = uint32_t(in.shape[0]), columns = uint32_t(in.shape[1]);
    void* arguments[] = {&from, &to, &in_pitch, &out_pitch, &rows, &columns};
    const PlainShape shape{.grid = {choose_grid(in, num_sms)}, .threads = kThreads};
    launch_plain(transposing_kernel(), gpu, shape, arguments, stream);
}

// A view [rows, columns] of FP8 with contiguous rows, in memory at `address`.
TensorView matrix_view(const TensorView& like, uint64_t address, int64_t rows, int64_t columns, int64_t pitch) {
    TensorView view = like;
    view.address = address;
    view.rank = 2;
    view.shape = {rows, columns}, view.strides = {pitch, 1};
    return view;
}

// The rows of all groups [k, rows] below one another, as one matrix.
bool are_evenly_spaced(const TensorView& view) {
    const int64_t k = view.shape[2];
    return view.strides[0] == k * view.strides[2] && k % kPitchAlignment == 0 && view.shape[0] * k <= Problem::kMaxDim;
}

// One launch over [num_groups * k, rows]: row i of the copy holds row i of every group, one after the other.
KMajorCopy make_all_k_major(const Gpu& gpu, const Operand& operand, int num_sms, void* stream, PyObject* handle) {
    const TensorView& view = operand.view;
    const int64_t k = view.shape[2], pitch = view.shape[0] * k;
    KMajorCopy copy{empty_fp8(view.shape[1], pitch, view.ordinal, handle), operand};
    const uint64_t address = make_operand(operand.name, copy.memory.get()).view.address;
    launch(gpu, matrix_view(view, view.address, pitch, view.shape[1], view.strides[2]),
           matrix_view(view, address, view.shape[1], pitch, pitch), num_sms, stream);
    copy.operand.view.address = address;
    copy.operand.view.strides = {k, pitch, 1};
    return copy;
}

// The rows of all groups beside one another, as one matrix [k, num_groups * rows] in memory.
bool are_side_by_side(const TensorView& view) {
    return view.strides[0] == view.shape[1] && view.shape[0] * view.shape[1] <= Problem::kMaxDim;
}

// One launch over [k, num_groups * rows], into matrices one after the other.
KMajorCopy make_joined_k_major(const Gpu& gpu, const Operand& operand, int num_sms, void* stream, PyObject* handle) {
    const TensorView& view = operand.view;
    const int64_t rows = view.shape[1], k = view.shape[2], all_rows = view.shape[0] * rows;
    const int64_t pitch = ceil_div(k, kPitchAlignment) * kPitchAlignment;
    KMajorCopy copy{empty_fp8(all_rows, pitch, view.ordinal, handle), operand};
    const uint64_t address = make_operand(operand.name, copy.memory.get()).view.address;
    launch(gpu, matrix_view(view, view.address, k, all_rows, view.strides[2]),
           matrix_view(view, address, all_rows, k, pitch), num_sms, stream);
    copy.operand.view.address = address;
    copy.operand.view.strides = {rows * pitch, pitch, 1};
    return copy;
}

// A launch for each group, into matrices one after the other.
KMajorCopy make_each_k_major(const Gpu& gpu, const Operand& operand, int num_sms, void* stream, PyObject* handle) {
    const TensorView& view = operand.view;
    const int64_t num_groups = view.shape[0], rows = view.shape[1], k = view.shape[2];
    const int64_t pitch = ceil_div(k, kPitchAlignment) * kPitchAlignment;
    KMajorCopy copy{empty_fp8(num_groups * rows, pitch, view.ordinal, handle), operand};
    const uint64_t address = make_operand(operand.name, copy.memory.get()).view.address;
    for (int64_t group = 0; group < num_groups; ++group)
        launch(gpu, matrix_view(view, view.address + uint64_t(group * view.strides[0]), k, rows, view.strides[2]),
               matrix_view(view, address + uint64_t(group * rows * pitch), rows, k, pitch), num_sms, stream);
    copy.operand.view.address = address;
    copy.operand.view.strides = {rows * pitch, pitch, 1};
    return copy;
}

}  // namespace

void load_transpose_kernel(const Gpu& gpu) { transposing_kernel().get(gpu); }

KMajorCopy make_k_major(const Gpu& gpu, const Operand& operand, int num_sms, void* stream, PyObject* handle) {
    transposing_kernel().get(gpu);  // before memory is taken: compiling may fail
    if (operand.view.rank == 3 && are_evenly_spaced(operand.view))
        return make_all_k_major(gpu, operand, num_sms, stream, handle);
    if (operand.view.rank == 3 && are_side_by_side(operand.view))
        return make_joined_k_major(gpu, operand, num_sms, stream, handle);
    if (operand.view.rank == 3) return make_each_k_major(gpu, operand, num_sms, stream, handle);
    const int64_t k = operand.view.shape[1];
    const int64_t pitch = ceil_div(k, kPitchAlignment) * kPitchAlignment;
    Reference memory = empty_fp8(operand.view.shape[0], pitch, operand.view.ordinal, handle);
    Operand copy = make_operand(operand.name, memory.get());
    copy.view.shape[1] = k;
    launch(gpu, transposed(operand).view, copy.view, num_sms, stream);
    return {std::move(memory), copy};
}

}  // namespace deep_gemm
