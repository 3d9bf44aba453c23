#include "runtime/dispatch.hpp"

#include <pybind11/pybind11.h>

#include <chrono>
#include <string>
#include <unordered_map>

#include "core/error.hpp"
#include "runtime/grouped_launch.hpp"

namespace py = pybind11;

namespace deep_gemm {
namespace {

// A server meets a few hundred problems; the bound is for callers with unbounded shapes. An entry has about 130 bytes.
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

py::tuple call_plan(const char* function, const Problem& problem, const py::object& argument) {
    return py::module_::import("deep_gemm.plan").attr(function)(problem, argument).cast<py::tuple>();
}

const LoadedKernel& load(const Gpu& gpu, const Problem& problem, const Config& config, const py::object& cubin,
                         const py::object& name) {
    return load_kernel(gpu, problem, config, std::string_view(py::reinterpret_borrow<py::bytes>(cubin)),
                       name.cast<std::string>());
}

std::string versions_text(const Gpu& gpu) {
    return "the driver supports CUDA " + driver::version_text(driver::api().version) + ", the GPU is a " +
           gpu.device.name + " (compute capability " + std::to_string(gpu.device.compute_major) + "." +
           std::to_string(gpu.device.compute_minor) + ")";
}

// The driver took the bytes of the cache or compiler for no kernel of this GPU: compile once more, past every cache.
const LoadedKernel& rebuild_and_load(const Gpu& gpu, const Problem& problem, const Config& config,
                                     const std::string& reason) {
    const py::tuple rebuilt = call_plan("rebuild", problem, py::cast(config));
    try {
        return load(gpu, problem, config, rebuilt[0], rebuilt[1]);
    } catch (const UnusableCubin& error) {
        const std::string compiler = rebuilt[2].cast<std::string>();
        throw Error(
            ErrorKind::kLaunch,
            "config = " + to_string(config) + ": the driver cannot load its kernel, not even compiled anew (" + reason +
                ", then " + error.what() + "); " + versions_text(gpu) + ", the kernel was compiled by " + compiler +
                "; use a compiler that is not newer than the driver (DG_JIT_NVCC_COMPILER), or update the driver.");
    }
}

// `plan`: what plan.plan or plan.plan_without_clusters gave.
const LoadedKernel& load_planned(const Gpu& gpu, const Problem& problem, const py::tuple& plan) {
    const auto config = plan[0].cast<Config>();
    try {
        return load(gpu, problem, config, plan[1], plan[2]);
    } catch (const UnusableCubin& error) {
        return rebuild_and_load(gpu, problem, config, error.what());
    }
}

const LoadedKernel& plan_and_load(const Gpu& gpu, const Problem& problem) {
    const py::int_ ordinal(gpu.ordinal);
    try {
        return load_planned(gpu, problem, call_plan("plan", problem, ordinal));
    } catch (const UnplacedCluster&) {
        return load_planned(gpu, problem, call_plan("plan_without_clusters", problem, ordinal));
    }
}

LaunchGeometry plan_geometry(const LoadedKernel& kernel, const Problem& problem) {
    const int sm_count = kernel.gpu->device.sm_count;
    if (is_grouped(problem.op))
        return get_grouped_geometry(problem, kernel.config, problem.num_sms, sm_count, kernel.max_clusters);
    return get_geometry(kernel.config, {problem.m, problem.n, problem.k}, problem.num_sms, sm_count,
                        kernel.max_clusters);
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
    const DispatchEntry entry{&kernel, plan_geometry(kernel, problem)};
    table().insert(key, entry);
    return entry;
}

double time_dispatch_hits(const Gpu& gpu, const std::vector<Problem>& problems, int rounds) {
    if (problems.empty() || problems.size() > kCapacity || rounds < 1)
        throw Error(ErrorKind::kArgument, "problems: must be 1 to " + std::to_string(kCapacity) +
                                              ", and rounds at least 1; pass fewer problems.");
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

DispatchStats dispatch_stats() {
    return {table().entries.size(), kCapacity, table().hits, table().misses, table().clears};
}

}  // namespace deep_gemm
