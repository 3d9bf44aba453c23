// A compiled kernel in the driver: loaded once per device, attributes set once, never unloaded.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/config.hpp"
#include "core/problem.hpp"
#include "runtime/gpu.hpp"

namespace deep_gemm {

struct LoadedKernel {
    const Gpu* gpu;
    Problem problem;  // as kernel_identity makes it
    Config config;
    std::optional<Config> second;  // its second tile, if it has one (core/second_tile.hpp)
    std::string name;
    std::string cubin;      // the verified bytes that were loaded; they identify the kernel
    driver::Kernel handle;  // context-free
    int64_t dynamic_smem_bytes;
    int local_bytes;
    int blocks_per_sm;    // CTAs that an SM holds at once, by shared memory and the registers as estimated
    int register_blocks;  // CTAs that an SM has registers for, as the kernel was compiled
    int max_clusters;     // clusters that the device holds at once; 0 = not limited (clusters of one CTA)

    driver::Function function() const { return reinterpret_cast<driver::Function>(handle); }
    int cluster_size() const { return config.cluster_m * config.cluster_n * config.split_k; }
};

// How a kernel is launched: a grid of `num_ctas` in x, in clusters along x. `is_overlapping`: it may start while the
// kernel before it in the stream ends. It holds the attributes that `config` points to, so it must not move.
struct KernelLaunch {
    KernelLaunch(const LoadedKernel& kernel, unsigned num_ctas, driver::Stream stream, bool is_overlapping);
    KernelLaunch(const KernelLaunch&) = delete;
    KernelLaunch& operator=(const KernelLaunch&) = delete;

    driver::LaunchAttribute attributes[2];
    driver::LaunchConfig config{};
};

// Thrown by load_kernel where the driver refuses the bytes for this GPU (no binary for it, invalid image, newer
// format): only compiling again may help.
class UnusableCubin : public std::runtime_error {
 public:
    using std::runtime_error::runtime_error;
};

// Thrown by load_kernel where the GPU places no cluster of the config's size: another config may help.
class UnplacedCluster : public std::runtime_error {
 public:
    using std::runtime_error::runtime_error;
};

// Load `cubin` (or find it loaded) for `gpu`. Kernels stay loaded for the life of the process, because a captured graph
// may replay them at any time. Works during stream capture. The GIL must be held. Throws Error(kConfig): a config is
// not legal on this GPU, or no kernel holds both. Throws Error(kLaunch): the driver refused. Throws UnusableCubin,
// UnplacedCluster.
const LoadedKernel& load_kernel(const Gpu& gpu, const Problem& problem, const Config& config,
                                const std::optional<Config>& second, std::string_view cubin, const std::string& name);

// Load the kernel `name` of `cubin` and bring its code into the context of `gpu`; as load_kernel, for kernels without a
// config. Throws Error(kLaunch), UnusableCubin.
driver::Kernel load_code(const Gpu& gpu, std::string_view cubin, const std::string& name);

}  // namespace deep_gemm
