#include "runtime/kernel.hpp"

#include <memory>
#include <vector>

#include "core/error.hpp"
#include "core/legality.hpp"

namespace deep_gemm {
namespace {

using driver::Api;

// Loading allocates memory, which a capture in another mode would forbid and which would break the capture.
class RelaxedCapture {
   public:
    explicit RelaxedCapture(const Api& cuda) : cuda_(cuda) { cuda_.thread_exchange_capture_mode(&mode_); }
    ~RelaxedCapture() { cuda_.thread_exchange_capture_mode(&mode_); }
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;

   private:
    const Api& cuda_;
    int mode_ = driver::kCaptureModeRelaxed;  // the thread's own mode while this lives
};

bool is_unusable(driver::Result result) {
    return result == driver::kErrorNoBinaryForGpu || result == driver::kErrorInvalidImage || result == driver::kErrorInvalidSource ||
           result == driver::kErrorUnsupportedPtxVersion;
}

void check_load(const Api& cuda, driver::Result result, const char* call) {
    if (is_unusable(result)) throw UnusableCubin(std::string(call) + ": " + driver::describe(cuda, result));
    driver::check(cuda, result, call);
}

void check_legal(const Gpu& gpu, const Config& config) {
    const std::string reason = legality_reason(Problem{}, config, gpu.device);
    if (!reason.empty()) throw Error(ErrorKind::kConfig, "config = " + to_string(config) + ": " + reason);
}

int read_attribute(const Api& cuda, const LoadedKernel& kernel, driver::FunctionAttribute attribute) {
    int value = 0;
    check_load(cuda, cuda.kernel_get_attribute(&value, attribute, kernel.handle, kernel.gpu->handle), "cuKernelGetAttribute");
    return value;
}

void set_attributes(const Api& cuda, LoadedKernel& kernel) {
    kernel.num_regs = read_attribute(cuda, kernel, driver::kNumRegs);
    kernel.local_bytes = read_attribute(cuda, kernel, driver::kLocalSizeBytes);
    const int smem = int(kernel.dynamic_smem_bytes);
    check_load(cuda, cuda.kernel_set_attribute(driver::kMaxDynamicSharedSizeBytes, smem, kernel.handle, kernel.gpu->handle),
               "cuKernelSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES)");
}

// Bring the code into the current context; left to the first launch that would happen there, perhaps under capture.
void load_into_context(const Api& cuda, const LoadedKernel& kernel) {
    driver::Function function = nullptr;
    check_load(cuda, cuda.kernel_get_function(&function, kernel.handle), "cuKernelGetFunction");
}

// Clusters of one CTA always fit; larger ones need their CTAs within one GPC, which not every SM count divides into.
int count_clusters(const Api& cuda, const LoadedKernel& kernel) {
    const unsigned size = unsigned(kernel.cluster_size());
    if (size == 1) return 0;
    const KernelLaunch launch(kernel, unsigned(kernel.gpu->device.sm_count) / size * size, nullptr);
    int clusters = 0;
    driver::check(cuda, cuda.occupancy_max_active_clusters(&clusters, kernel.function(), &launch.config), "cuOccupancyMaxActiveClusters");
    if (clusters < 1)
        throw Error(ErrorKind::kLaunch,
                    "config = " + to_string(kernel.config) + ": no cluster of it fits this GPU; use a config with clusters of one CTA.");
    return clusters;
}

std::unique_ptr<LoadedKernel> load_new(const Gpu& gpu, const Config& config, std::string_view cubin, const std::string& name) {
    check_legal(gpu, config);
    const Api& cuda = driver::api();
    auto kernel =
        std::make_unique<LoadedKernel>(LoadedKernel{&gpu, config, name, std::string(cubin), nullptr, smem_bytes(config), 0, 0, 0});
    const RelaxedCapture relaxed(cuda);
    const ContextGuard context(gpu);
    driver::Library library = nullptr;
    check_load(cuda, cuda.library_load_data(&library, kernel->cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData");
    check_load(cuda, cuda.library_get_kernel(&kernel->handle, library, name.c_str()), "cuLibraryGetKernel");
    set_attributes(cuda, *kernel);
    load_into_context(cuda, *kernel);
    kernel->max_clusters = count_clusters(cuda, *kernel);
    return kernel;
}

bool is_same(const LoadedKernel& kernel, const Gpu& gpu, const Config& config, std::string_view cubin, const std::string& name) {
    return kernel.gpu == &gpu && kernel.config == config && kernel.cubin == cubin && kernel.name == name;
}

}  // namespace

KernelLaunch::KernelLaunch(const LoadedKernel& kernel, unsigned num_ctas, driver::Stream stream) {
    cluster.id = driver::kLaunchClusterDimension;
    cluster.value.cluster = {unsigned(kernel.cluster_size()), 1, 1};
    config.grid_x = num_ctas;
    config.block_x = unsigned(num_threads(kernel.config));
    config.grid_y = config.grid_z = config.block_y = config.block_z = 1;
    config.shared_bytes = unsigned(kernel.dynamic_smem_bytes);
    config.stream = stream;
    config.attributes = &cluster;
    config.num_attributes = kernel.cluster_size() > 1 ? 1 : 0;
}

const LoadedKernel& load_kernel(const Gpu& gpu, const Config& config, std::string_view cubin, const std::string& name) {
    static std::vector<std::unique_ptr<LoadedKernel>> kernels;
    for (const auto& kernel : kernels)
        if (is_same(*kernel, gpu, config, cubin, name)) return *kernel;
    kernels.push_back(load_new(gpu, config, cubin, name));
    return *kernels.back();
}

}  // namespace deep_gemm
