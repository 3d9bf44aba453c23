#include "runtime/dispatch.hpp"

#include <pybind11/pybind11.h>

#include <chrono>
#include <string>
#include <unordered_map>

#include "core/error.hpp"

namespace py = pybind11;

namespace deep_gemm {
namespace {

// A server meets a few hundred problems; the bound is for callers with unbounded shapes. An entry has about 120 bytes.
constexpr size_t kCapacity = 4096;

struct Key {
    int ordinal;
    Problem problem;
    bool operator==(const Key&) const = default;
};

struct KeyHash {
    size_t operator()(const Key& key) const {
        const Problem& problem = key.problem;
        const uint64_t small =
            uint64_t(problem.num_sms) << 24 | uint64_t(problem.compiled_dims) << 16 | uint64_t(problem.op) << 8 | uint64_t(key.ordinal);
        uint64_t hash = small;
        for (int64_t dim : {problem.m, problem.n, problem.k}) hash = (hash ^ uint64_t(dim)) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
        return size_t(hash);
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

const LoadedKernel& load(const Gpu& gpu, const Config& config, const py::tuple& cubin_and_name) {
    const std::string_view cubin = py::reinterpret_borrow<py::bytes>(cubin_and_name[0]);
    return load_kernel(gpu, config, cubin, cubin_and_name[1].cast<std::string>());
}

std::string versions_text(const Gpu& gpu) {
    return "the driver supports CUDA " + driver::version_text(driver::api().version) + ", the GPU is a " + gpu.device.name +
           " (compute capability " + std::to_string(gpu.device.compute_major) + "." + std::to_string(gpu.device.compute_minor) + ")";
}

// The driver took the bytes of the cache or compiler for no kernel of this GPU: compile once more, past every cache.
const LoadedKernel& rebuild_and_load(const Gpu& gpu, const Problem& problem, const Config& config, const std::string& reason) {
    const py::object rebuilt = py::module_::import("deep_gemm.plan").attr("rebuild")(problem, config);
    const py::tuple cubin_and_name = rebuilt.cast<py::tuple>();
    try {
        return load(gpu, config, cubin_and_name);
    } catch (const UnusableCubin& error) {
        const std::string compiler = cubin_and_name[2].cast<std::string>();
        throw Error(ErrorKind::kLaunch,
                    "config = " + to_string(config) + ": the driver cannot load its kernel, not even compiled anew (" + reason + ", then " +
                        error.what() + "); " + versions_text(gpu) + ", the kernel was compiled by " + compiler +
                        "; use a compiler that is not newer than the driver (DG_JIT_NVCC_COMPILER), or update the driver.");
    }
}

const LoadedKernel& plan_and_load(const Gpu& gpu, const Problem& problem) {
    const py::tuple plan = py::module_::import("deep_gemm.plan").attr("plan")(problem, gpu.ordinal).cast<py::tuple>();
    const auto config = plan[0].cast<Config>();
    try {
        return load(gpu, config, py::make_tuple(plan[1], plan[2]));
    } catch (const UnusableCubin& error) {
        return rebuild_and_load(gpu, problem, config, error.what());
    }
}

}  // namespace

DispatchEntry get_dispatch_entry(const Gpu& gpu, const Problem& problem) {
    const Key key{gpu.ordinal, problem};
    if (const auto found = table().entries.find(key); found != table().entries.end()) {
        ++table().hits;
        return found->second;
    }
    ++table().misses;
    const LoadedKernel& kernel = plan_and_load(gpu, problem);
    if (const auto found = table().entries.find(key); found != table().entries.end()) return found->second;
    const GemmSizes sizes{problem.m, problem.n, problem.k};
    const DispatchEntry entry{&kernel, get_geometry(kernel.config, sizes, problem.num_sms, gpu.device.sm_count, kernel.max_clusters)};
    table().insert(key, entry);
    return entry;
}

double time_dispatch_hits(const Gpu& gpu, const std::vector<Problem>& problems, int rounds) {
    if (problems.empty() || problems.size() > kCapacity || rounds < 1)
        throw Error(ErrorKind::kArgument,
                    "problems: must be 1 to " + std::to_string(kCapacity) + ", and rounds at least 1; pass fewer problems.");
    clear_dispatch_table();
    for (const Problem& problem : problems) get_dispatch_entry(gpu, problem);
    const LoadedKernel* volatile kept = nullptr;  // the answers are used, so that no compiler leaves the look-ups out
    const auto start = std::chrono::steady_clock::now();
    for (int round = 0; round < rounds; ++round)
        for (const Problem& problem : problems) kept = get_dispatch_entry(gpu, problem).kernel;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    (void)kept;
    return elapsed.count() / (double(rounds) * double(problems.size()));
}

void clear_dispatch_table() { table().entries.clear(); }

DispatchStats dispatch_stats() { return {table().entries.size(), kCapacity, table().hits, table().misses, table().clears}; }

}  // namespace deep_gemm
