#include "runtime/transpose.hpp"

#include <algorithm>
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

constexpr int64_t kTile = 128;  // a block transposes 128 x 128 bytes at a time
constexpr unsigned kThreads = 256;
constexpr int64_t kMaxGrid = INT32_MAX;  // more tiles than the memory of a GPU holds; CUDA programming guide, "Technical Specifications"

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

// Blocks walk the tiles, so that any grid is right. Several may share an SM; one for each SM allowed can never take more of them.
unsigned choose_grid(const TensorView& in, int num_sms) {
    const int64_t tiles = ceil_div(in.shape[0], kTile) * ceil_div(in.shape[1], kTile);
    return unsigned(std::min(tiles, num_sms > 0 ? int64_t(num_sms) : kMaxGrid));
}

void launch(const Gpu& gpu, const TensorView& in, const TensorView& out, int num_sms, void* stream) {
    uint64_t from = in.address, to = out.address;
    int64_t in_pitch = row_pitch_bytes(in), out_pitch = row_pitch_bytes(out);
    uint32_t rows = uint32_t(in.shape[0]), columns = uint32_t(in.shape[1]);
    driver::LaunchConfig config{};
    config.grid_x = choose_grid(in, num_sms), config.grid_y = config.grid_z = 1;
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

KMajorCopy make_k_major(const Gpu& gpu, const Operand& operand, int num_sms, void* stream, bool is_current_stream) {
    const int64_t k = operand.view.shape[1];
    get_kernel(gpu);  // before memory is taken: compiling may fail
    const int64_t pitch = ceil_div(k, kPitchAlignment) * kPitchAlignment;
    py::object memory = allocate(operand.view, pitch, stream, is_current_stream);
    Operand copy = make_operand(operand.name, memory.ptr());
    copy.view.shape[1] = k;
    launch(gpu, transposed(operand).view, copy.view, num_sms, stream);
    return {std::move(memory), copy};
}

}  // namespace deep_gemm
