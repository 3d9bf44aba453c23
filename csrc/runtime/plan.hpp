// What the dispatch asks of deep_gemm.plan, in Python, for a problem that it has not seen. All throw PythonError, and
// release the GIL while Python runs. Defined where Problem and Config are bound (bind_plan.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config.hpp"
#include "core/problem.hpp"
#include "core/python.hpp"

namespace deep_gemm {

struct CompiledKernel {
    Reference cubin;  // bytes
    std::string name;
    std::string compiler{};  // name and version; only rebuild_kernel says it

    std::string_view bytes() const { return {PyBytes_AS_STRING(cubin.get()), size_t(PyBytes_GET_SIZE(cubin.get()))}; }
};

struct KernelPlan {
    Config config;
    std::optional<Config> second;  // the kernel's second tile, if it has one (core/second_tile.hpp)
    CompiledKernel kernel;
};

// The config chosen for `problem` on CUDA device `ordinal`, its second tile, and their kernel.
KernelPlan plan_kernel(const Problem& problem, int ordinal);

// The same among configs without clusters.
KernelPlan plan_kernel_without_clusters(const Problem& problem, int ordinal);

// Print and record `problem` as planning does: its calls launch no kernel that is planned.
void note_unplanned(const Problem& problem);

// Record `problem` as a call gave it, which is not planned: on CPU tensors, or because its scales are copied first.
void record_problem(const Problem& problem);

// Warn once that row-major scales are not copied, and why. Throws PythonError.
void note_missing_copies(const std::string& reason);

// Compile the kernel of a plan again, past every cache.
CompiledKernel rebuild_kernel(const Problem& problem, const KernelPlan& plan);

struct CompiledPlainKernel {
    CompiledKernel kernel;
    size_t num_arguments;  // of its entry
};

// The plain kernel `name` (plain_kernel.hpp); `is_refused`: compile again, past every cache.
CompiledPlainKernel compile_plain_kernel(const std::string& name,
                                         const std::vector<std::pair<std::string, int64_t>>& constants,
                                         bool is_refused);

}  // namespace deep_gemm
