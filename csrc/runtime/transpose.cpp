#include "runtime/transpose.hpp"

#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/problem.hpp"
#include "runtime/checks.hpp"
#include "runtime/kernel.hpp"
#include "runtime/launch.hpp"

namespace py = pybind11;

namespace deep_gemm {
namespace {

constexpr int64_t kTile = 128;         // a block transposes 128 x 128 bytes
constexpr unsigned kThreads = 256;
constexpr int64_t kMaxTilesY = 65535;  // of a grid, CUDA programming guide, "Technical Specifications"

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

driver::Kernel load(const Gpu& gpu, bool is_refused) {
    const py::tuple built = py::module_::import("deep_gemm.plan").attr("get_transpose_kernel")(is_refused).cast<py::tuple>();
    return load_code(gpu, std::string_view(py::reinterpret_borrow<py::bytes>(built[0])), built[1].cast<std::string>());
}

driver::Kernel load_or_rebuild(const Gpu& gpu) {
    try {
        return load(gpu, false);
    } catch (const UnusableCubin&) {
        // Once more, past every cache.
    }
    try {
        return load(gpu, true);
    } catch (const UnusableCubin& error) {
        throw Error(ErrorKind::kLaunch, std::string("the driver cannot load the transposing kernel (") + error.what() +
                                            "); use a compiler that is not newer than the driver, or update the driver.");
    }
}

// Loaded at the first use on a device, and kept as every kernel is.
driver::Kernel get_kernel(const Gpu& gpu) {
    static std::vector<driver::Kernel> kernels;
    if (kernels.size() <= size_t(gpu.ordinal)) kernels.resize(size_t(gpu.ordinal) + 1);
    if (kernels[gpu.ordinal] == nullptr) {
        const driver::Kernel loaded = load_or_rebuild(gpu);  // gives the GIL away: another thread may have resized the list
        kernels[gpu.ordinal] = loaded;
    }
    return kernels[gpu.ordinal];
}

void check_size(const Operand& operand, int64_t k) {
    if (ceil_div(k, kTile) > kMaxTilesY)
        throw Error(ErrorKind::kShape, "k = " + std::to_string(k) + ": transposing " + operand.name + " takes k up to " +
                                           std::to_string(kMaxTilesY * kTile) + "; pass it K-major.");
}

void launch(const Gpu& gpu, const TensorView& in, const TensorView& out, void* stream) {
    uint64_t from = in.address, to = out.address;
    int64_t in_pitch = row_pitch_bytes(in), out_pitch = row_pitch_bytes(out);
    uint32_t rows = uint32_t(in.shape[0]), columns = uint32_t(in.shape[1]);
    driver::LaunchConfig config{};
    config.grid_x = unsigned(ceil_div(columns, kTile)), config.grid_y = unsigned(ceil_div(rows, kTile)), config.grid_z = 1;
    config.block_x = kThreads, config.block_y = config.block_z = 1;
    config.stream = static_cast<driver::Stream>(stream);
    void* arguments[] = {&from, &to, &in_pitch, &out_pitch, &rows, &columns};
    enqueue(gpu, reinterpret_cast<driver::Function>(get_kernel(gpu)), config, arguments, "the transposing pass");
}

py::object allocate(const TensorView& view, int64_t pitch, void* stream, bool is_current_stream) {
    const py::object handle = is_current_stream ? py::none() : py::object(py::int_(reinterpret_cast<uint64_t>(stream)));
    return py::module_::import("deep_gemm.stream").attr("empty_fp8")(view.shape[0], pitch, view.ordinal, handle);
}

}  // namespace

KMajorCopy make_k_major(const Gpu& gpu, const Operand& operand, void* stream, bool is_current_stream) {
    const int64_t k = operand.view.shape[1];
    check_size(operand, k);
    get_kernel(gpu);  // before memory is taken: compiling may fail
    const int64_t pitch = ceil_div(k, kPitchAlignment) * kPitchAlignment;
    py::object memory = allocate(operand.view, pitch, stream, is_current_stream);
    Operand copy = make_operand(operand.name, memory.ptr());
    copy.view.shape[1] = k;
    launch(gpu, transposed(operand).view, copy.view, stream);
    return {std::move(memory), copy};
}

}  // namespace deep_gemm
