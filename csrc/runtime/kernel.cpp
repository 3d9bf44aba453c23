#include "runtime/kernel.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "core/error.hpp"
#include "core/legality.hpp"
#include "core/second_tile.hpp"

namespace deep_gemm {
namespace {

using driver::Api;

// Loading allocates memory, which breaks a capture in any other mode.
class RelaxedCapture {
 public:
    explicit RelaxedCapture(const Api& cuda) : cuda_(cuda) { cuda_.thread_exchange_capture_mode(&mode_); }
    ~RelaxedCapture() { cuda_.thread_exchange_capture_mode(&mode_); }
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
    const Api& cuda_;
    int mode_ = driver::kCaptureModeRelaxed;  // holds the thread's own mode while this lives
};

bool is_unusable(driver::Result result) {
    return result == driver::kErrorNoBinaryForGpu || result == driver::kErrorInvalidImage ||
           result == driver::kErrorInvalidSource || result == driver::kErrorUnsupportedPtxVersion;
}

void check_load(const Api& cuda, driver::Result result, const char* call) {
    if (is_unusable(result)) throw UnusableCubin(std::string(call) + ": " + driver::describe(cuda, result));
    driver::check(cuda, result, call);
}

int read_attribute(const Api& cuda, const LoadedKernel& kernel, driver::FunctionAttribute attribute) {
    int value = 0;
    check_load(cuda, cuda.kernel_get_attribute(&value, attribute, kernel.handle, kernel.gpu->handle),
               "cuKernelGetAttribute");
    return value;
}

void set_attributes(const Api& cuda, LoadedKernel& kernel) {
    kernel.local_bytes = read_attribute(cuda, kernel, driver::kLocalSizeBytes);
    const int registers = read_attribute(cuda, kernel, driver::kNumRegisters);
    kernel.register_blocks = fitting_blocks(registers, num_threads(kernel.problem, kernel.config));
    const int smem = int(kernel.dynamic_smem_bytes);
    check_load(cuda,
               cuda.kernel_set_attribute(driver::kMaxDynamicSharedSizeBytes, smem, kernel.handle, kernel.gpu->handle),
               "cuKernelSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES)");
}

driver::Kernel find_kernel(const Api& cuda, std::string_view cubin, const std::string& name) {
    driver::Library library = nullptr;
    driver::Kernel kernel = nullptr;
    check_load(cuda, cuda.library_load_data(&library, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
               "cuLibraryLoadData");
    check_load(cuda, cuda.library_get_kernel(&kernel, library, name.c_str()), "cuLibraryGetKernel");
    return kernel;
}

// Bring the code into the current context; otherwise the first launch would do it, perhaps under capture.
void load_into_context(const Api& cuda, driver::Kernel kernel) {
    driver::Function function = nullptr;
    check_load(cuda, cuda.kernel_get_function(&function, kernel), "cuKernelGetFunction");
}

// Clusters of one CTA always fit; larger ones need their CTAs within one GPC, which not every SM count divides into.
int count_clusters(const Api& cuda, const LoadedKernel& kernel) {
    const unsigned size = unsigned(kernel.cluster_size());
    if (size == 1) return 0;
    const KernelLaunch launch(kernel, unsigned(kernel.gpu->device.sm_count) / size * size, nullptr, false);
    int clusters = 0;
    driver::check(cuda, cuda.occupancy_max_active_clusters(&clusters, kernel.function(), &launch.config),
                  "cuOccupancyMaxActiveClusters");
    if (clusters < 1)
        throw UnplacedCluster("config = " + to_string(kernel.config) + ": no cluster of " + std::to_string(size) +
                              " CTAs fits this GPU");
    return clusters;
}

std::unique_ptr<LoadedKernel> load_new(const Gpu& gpu, const Problem& identity, const Config& config,
                                       const std::optional<Config>& second, std::string_view cubin,
                                       const std::string& name) {
    const Api& cuda = driver::api();
    const int blocks = is_logits(identity) ? 1 : blocks_per_sm(identity, config);
    const int64_t smem = std::max(smem_bytes(identity, config), second ? smem_bytes(identity, *second) : 0);
    auto kernel = std::make_unique<LoadedKernel>(
        LoadedKernel{&gpu, identity, config, second, name, std::string(cubin), nullptr, smem, 0, blocks, 0, 0});
    const RelaxedCapture relaxed(cuda);
    const ContextGuard context(gpu);
    kernel->handle = find_kernel(cuda, kernel->cubin, name);
    set_attributes(cuda, *kernel);
    load_into_context(cuda, kernel->handle);
    kernel->max_clusters = count_clusters(cuda, *kernel);
    return kernel;
}

bool is_same(const LoadedKernel& kernel, const Gpu& gpu, const Problem& identity, const Config& config,
             const std::optional<Config>& second, std::string_view cubin, const std::string& name) {
    return kernel.gpu == &gpu && kernel.config == config && kernel.second == second && kernel.problem == identity &&
           kernel.cubin == cubin && kernel.name == name;
}

driver::LaunchAttribute make_cluster_attribute(unsigned size) {
    driver::LaunchAttribute attribute{};
    attribute.id = driver::kLaunchClusterDimension;
    attribute.value.cluster = {size, 1, 1};
    return attribute;
}

driver::LaunchAttribute make_overlap_attribute() {
    driver::LaunchAttribute attribute{};
    attribute.id = driver::kLaunchProgrammaticStreamSerialization;
    attribute.value.is_stream_serialization_programmatic = 1;
    return attribute;
}

}  // namespace

KernelLaunch::KernelLaunch(const LoadedKernel& kernel, unsigned num_ctas, driver::Stream stream, bool is_overlapping) {
    unsigned count = 0;
    if (kernel.cluster_size() > 1) attributes[count++] = make_cluster_attribute(unsigned(kernel.cluster_size()));
    if (is_overlapping) attributes[count++] = make_overlap_attribute();
    config.grid_x = num_ctas;
    config.block_x = unsigned(num_threads(kernel.problem, kernel.config));
    config.grid_y = config.grid_z = config.block_y = config.block_z = 1;
    config.shared_bytes = unsigned(kernel.dynamic_smem_bytes);
    config.stream = stream;
    config.attributes = attributes;
    config.num_attributes = count;
}

driver::Kernel load_code(const Gpu& gpu, std::string_view cubin, const std::string& name) {
    const Api& cuda = driver::api();
    const RelaxedCapture relaxed(cuda);
    const ContextGuard context(gpu);
    const driver::Kernel kernel = find_kernel(cuda, cubin, name);
    load_into_context(cuda, kernel);
    return kernel;
}

const LoadedKernel& load_kernel(const Gpu& gpu, const Problem& problem, const Config& config,
                                const std::optional<Config>& second, std::string_view cubin, const std::string& name) {
    static std::vector<std::unique_ptr<LoadedKernel>> kernels;
    if (const std::string reason = tiles_reason(problem, config, second, gpu.device); !reason.empty())
        throw Error(ErrorKind::kConfig, reason);
    const Problem identity = kernel_identity(problem);
    for (const auto& kernel : kernels)
        if (is_same(*kernel, gpu, identity, config, second, cubin, name)) return *kernel;
    kernels.push_back(load_new(gpu, identity, config, second, cubin, name));
    return *kernels.back();
}

}  // namespace deep_gemm
