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

// What the kernel knows of an operand: `groups` matrices [rows, columns] in memory. Without groups there is none.
struct Matrices {
    uint64_t in = 0, out = 0;
    int64_t in_pitch = 0, out_pitch = 0, in_group = 0, out_group = 0;  // bytes
    uint32_t rows = 0, columns = 0, groups = 0;

    int64_t num_tiles() const { return groups * ceil_div(rows, kTile) * ceil_div(columns, kTile); }
    std::array<void*, 9> arguments() {
        return {&in, &out, &in_pitch, &out_pitch, &in_group, &out_group, &rows, &columns, &groups};
    }
};

// Groups whose rows lie beside one another are one matrix; its transpose has the matrices of the groups in turn.
void join_groups(Matrices& matrices) {
    const int64_t columns = int64_t(matrices.groups) * matrices.columns;
    if (matrices.groups == 1 || matrices.in_group != matrices.columns || columns > Problem::kMaxDim) return;
    matrices.columns = uint32_t(columns), matrices.groups = 1;
    matrices.in_group = matrices.out_group = 0;
}

Matrices read_matrices(const Operand& operand) {
    const TensorView view = transposed(operand).view;  // [k, rows], as it lies in memory
    const int64_t k = view.shape[view.rank - 2], rows = view.shape[view.rank - 1];
    const int64_t pitch = ceil_div(k, kPitchAlignment) * kPitchAlignment;
    const bool has_groups = view.rank == 3 && view.shape[0] > 1;
    return {.in = view.address,
            .in_pitch = row_pitch_bytes(view),
            .out_pitch = pitch,
            .in_group = has_groups ? view.strides[0] : 0,
            .out_group = has_groups ? rows * pitch : 0,
            .rows = uint32_t(k),
            .columns = uint32_t(rows),
            .groups = has_groups ? uint32_t(view.shape[0]) : 1};
}

// Let the operand be its copy in the memory that is returned.
Reference take_memory(Operand& operand, Matrices& matrices, PyObject* handle) {
    TensorView& view = operand.view;
    const int64_t pitch = matrices.out_pitch, rows = matrices.columns;
    Reference memory = empty_fp8(matrices.groups * rows, pitch, view.ordinal, handle);
    view.address = matrices.out = make_operand(operand.name, memory.get()).view.address;
    view.strides = {pitch, 1};
    if (view.rank == 3) view.strides = {rows * pitch, pitch, 1};
    return memory;
}

// CTAs walk the tiles, so that any grid is right. One CTA for each SM allowed never takes more SMs than that.
unsigned choose_grid(int64_t tiles, int num_sms) {
    return unsigned(std::min(tiles, num_sms > 0 ? int64_t(num_sms) : kMaxGrid));
}

void launch(const Gpu& gpu, std::array<Matrices, 2>& both, int num_sms, void* stream) {
    std::array<void*, 18> arguments;
    auto next = arguments.begin();
    for (Matrices& matrices : both) next = std::ranges::copy(matrices.arguments(), next).out;
    const PlainShape shape{.grid = {choose_grid(both[0].num_tiles() + both[1].num_tiles(), num_sms)},
                           .threads = kThreads};
    launch_plain(transposing_kernel(), gpu, shape, arguments.data(), stream);
}

}  // namespace

void load_transpose_kernel(const Gpu& gpu) { transposing_kernel().get(gpu); }

KMajorMemory make_k_major(const Gpu& gpu, std::span<Operand* const> operands, int num_sms, void* stream,
                          PyObject* handle) {
    transposing_kernel().get(gpu);  // before memory is taken: compiling may fail
    KMajorMemory memory;
    std::array<Matrices, 2> both{};
    for (size_t i = 0; i < operands.size(); ++i) {
        both[i] = read_matrices(*operands[i]);
        memory[i] = take_memory(*operands[i], both[i], handle);
        join_groups(both[i]);
    }
    launch(gpu, both, num_sms, stream);
    return memory;
}

}  // namespace deep_gemm
