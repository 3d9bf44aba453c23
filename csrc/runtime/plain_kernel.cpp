#include "runtime/plain_kernel.hpp"

#include "core/error.hpp"
#include "runtime/kernel.hpp"
#include "runtime/launch.hpp"
#include "runtime/plan.hpp"
#include "runtime/policy.hpp"

namespace deep_gemm {

driver::Kernel PlainKernel::load(const Gpu& gpu, bool is_refused) {
    const CompiledPlainKernel built = compile_plain_kernel(name_, constants_, is_refused);
    num_arguments_ = built.num_arguments;
    return load_code(gpu, built.kernel.bytes(), built.kernel.name);
}

driver::Kernel PlainKernel::load_or_rebuild(const Gpu& gpu) {
    try {
        return load(gpu, false);
    } catch (const UnusableCubin&) {
        // Once more, past every cache.
    }
    try {
        return load(gpu, true);
    } catch (const UnusableCubin& error) {
        throw Error(ErrorKind::kLaunch,
                    "the driver cannot load " + what_ + " (" + error.what() +
                        "); use a compiler that is not newer than the driver, or update the driver.");
    }
}

driver::Function PlainKernel::get(const Gpu& gpu) {
    const size_t index = size_t(gpu.ordinal);
    if (loaded_.size() <= index) loaded_.resize(index + 1);
    if (loaded_[index] == nullptr) {
        // Releases the GIL: another thread may have resized the list afterwards.
        const driver::Kernel loaded = load_or_rebuild(gpu);
        loaded_[index] = loaded;
    }
    return reinterpret_cast<driver::Function>(loaded_[index]);
}

void launch_plain(PlainKernel& kernel, const Gpu& gpu, const PlainShape& shape, void** arguments, void* stream) {
    const driver::Function function = kernel.get(gpu);
    if (get_compile_mode()) return;
    driver::LaunchConfig config{};
    config.grid_x = shape.grid.x, config.grid_y = shape.grid.y, config.grid_z = shape.grid.z;
    config.block_x = shape.threads, config.block_y = config.block_z = 1;
    config.shared_bytes = shape.shared_bytes;
    config.stream = static_cast<driver::Stream>(stream);
    const ContextGuard context(gpu);
    enqueue(function, config, arguments, [&] { return kernel.what(); });
}

}  // namespace deep_gemm
