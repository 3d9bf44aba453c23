// The dispatch table: from a problem on a GPU to the loaded kernel and its launch geometry. A hit takes no Python; a
// miss asks deep_gemm.plan for a config and a cubin.
//
// Threads: the GIL protects the table and the loaded kernels; the module does not declare itself free of it, so a
// free-threaded interpreter enables it. A miss releases the GIL while Python plans; the table is asked again
// afterwards, so that threads that miss together end with one entry. Entries are returned by value, because a later
// call may clear the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/problem.hpp"
#include "runtime/kernel.hpp"
#include "runtime/launch.hpp"

namespace deep_gemm {

struct DispatchEntry {
    const LoadedKernel* kernel;  // of a small sum over groups: one that is empty but for its GPU
    LaunchGeometry geometry;
};

struct DispatchStats {
    size_t size, capacity;
    uint64_t hits, misses, clears;
};

// The kernel and geometry for `problem` on `gpu`: from the table, else planned, loaded and remembered; a small sum over
// groups (sum_products.hpp) is only noted, since its calls launch a plain kernel. A full table is
// cleared (its kernels stay loaded). Throws Error, and PythonError where planning failed.
DispatchEntry get_dispatch_entry(const Gpu& gpu, const Problem& problem);

// Seconds that one lookup in the table takes, on average over `rounds` passes through `problems`, which are planned
// first where they are not in it. Throws as get_dispatch_entry, and Error(kArgument) where the table cannot hold them.
double time_dispatch_hits(const Gpu& gpu, const std::vector<Problem>& problems, int rounds);

void clear_dispatch_table();
DispatchStats dispatch_stats();

}  // namespace deep_gemm
