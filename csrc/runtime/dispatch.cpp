#include "runtime/dispatch.hpp"

#include <chrono>
#include <map>
#include <string>
#include <unordered_map>

#include "core/error.hpp"
#include "core/second_tile.hpp"
#include "runtime/plan.hpp"
#include "runtime/sum_products.hpp"

namespace deep_gemm {
namespace {

// A server meets a few hundred problems; the bound is for callers with unbounded shapes. An entry takes about 150
// bytes.
constexpr size_t kCapacity = 4096;

struct Key {
    int ordinal;
    Problem problem;
    bool operator==(const Key&) const = default;
};

struct KeyHash {
    size_t operator()(const Key& key) const {
        return hash_value(key.problem) + size_t(key.ordinal) * 0x9e3779b97f4a7c15u;
    }
};

struct Table {
    std::unordered_map<Key, DispatchEntry, KeyHash> entries;
    uint64_t hits = 0, misses = 0, clears = 0;

    void insert(const Key& key, const DispatchEntry& entry) {
        if (entries.size() >= kCapacity) entries.clear(), ++clears;
        entries.insert_or_assign(key, entry);
    }
};

// Lives as long as the process: entries may be used while the interpreter shuts down.
Table& table() {
    static Table* instance = new Table;
    return *instance;
}

const LoadedKernel& load(const Gpu& gpu, const Problem& problem, const KernelPlan& plan, const CompiledKernel& kernel) {
    return load_kernel(gpu, problem, plan.config, plan.second, kernel.bytes(), kernel.name);
}

std::string versions_text(const Gpu& gpu) {
    return "the driver supports CUDA " + driver::version_text(driver::api().version) + ", the GPU is a " +
           gpu.device.name + " (compute capability " + std::to_string(gpu.device.compute_major) + "." +
           std::to_string(gpu.device.compute_minor) + ")";
}

// The driver refused the bytes of the cache or the compiler: compile once more, past every cache.
const LoadedKernel& rebuild_and_load(const Gpu& gpu, const Problem& problem, const KernelPlan& plan,
                                     const std::string& reason) {
    const CompiledKernel rebuilt = rebuild_kernel(problem, plan);
    try {
        return load(gpu, problem, plan, rebuilt);
    } catch (const UnusableCubin& error) {
        throw Error(ErrorKind::kLaunch,
                    "config = " + name_tiles(plan.config, plan.second) +
                        ": the driver cannot load its kernel, not even recompiled (" + reason + ", then " +
                        error.what() + "); " + versions_text(gpu) + ", the kernel was compiled by " + rebuilt.compiler +
                        "; use a compiler that is not newer than the driver (DG_JIT_NVCC_COMPILER), or update the "
                        "driver.");
    }
}

const LoadedKernel& load_planned(const Gpu& gpu, const Problem& problem, const KernelPlan& plan) {
    try {
        return load(gpu, problem, plan, plan.kernel);
    } catch (const UnusableCubin& error) {
        return rebuild_and_load(gpu, problem, plan, error.what());
    }
}

const LoadedKernel& plan_and_load(const Gpu& gpu, const Problem& problem) {
    try {
        return load_planned(gpu, problem, plan_kernel(problem, gpu.ordinal));
    } catch (const UnplacedCluster&) {
        return load_planned(gpu, problem, plan_kernel_without_clusters(problem, gpu.ordinal));
    }
}

// What stands for the kernel of calls that launch no GEMM: it names their GPU.
const LoadedKernel& no_kernel(const Gpu& gpu) {
    static std::map<int, LoadedKernel> kernels;
    LoadedKernel& kernel = kernels[gpu.ordinal];
    kernel.gpu = &gpu;
    return kernel;
}

DispatchEntry make_entry(const Gpu& gpu, const Problem& problem) {
    if (is_small_sum(problem, gpu.device.sm_count)) {
        note_unplanned(problem);
        return {&no_kernel(gpu), {.is_small_sum = true}};
    }
    const LoadedKernel& kernel = plan_and_load(gpu, problem);
    return {&kernel, get_kernel_geometry(problem, kernel, problem.num_sms)};
}

}  // namespace

DispatchEntry get_dispatch_entry(const Gpu& gpu, const Problem& problem) {
    const Key key{gpu.ordinal, problem};
    if (const auto found = table().entries.find(key); found != table().entries.end()) {
        ++table().hits;
        return found->second;
    }
    ++table().misses;
    const DispatchEntry entry = make_entry(gpu, problem);
    if (const auto found = table().entries.find(key); found != table().entries.end()) return found->second;
    table().insert(key, entry);
    return entry;
}

double time_dispatch_hits(const Gpu& gpu, const std::vector<Problem>& problems, int rounds) {
    if (problems.empty() || problems.size() > kCapacity || rounds < 1)
        throw Error(ErrorKind::kArgument, "problems: must be 1 to " + std::to_string(kCapacity) +
                                              ", and rounds at least 1; pass fewer problems.");
    clear_dispatch_table();
    for (const Problem& problem : problems) get_dispatch_entry(gpu, problem);
    const LoadedKernel* volatile kept = nullptr;  // the answers are used, so that the compiler keeps the look-ups
    const auto start = std::chrono::steady_clock::now();
    for (int round = 0; round < rounds; ++round)
        for (const Problem& problem : problems) kept = get_dispatch_entry(gpu, problem).kernel;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    (void)kept;
    return elapsed.count() / (double(rounds) * double(problems.size()));
}

void clear_dispatch_table() { table().entries.clear(); }

DispatchStats dispatch_stats() {
    return {table().entries.size(), kCapacity, table().hits, table().misses, table().clears};
}

}  // namespace deep_gemm
