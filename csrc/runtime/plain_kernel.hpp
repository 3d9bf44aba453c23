// Plain kernels: those that are no GEMM and have no config. Each is a header of deep_gemm/include, a row of
// deep_gemm/jit/plain_kernels.py and a set of integer constants. The JIT compiles and caches them as every kernel.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/python.hpp"
#include "runtime/gpu.hpp"

namespace deep_gemm {

// Names and values, in the order in which the kernel's constants stand; deep_gemm.jit.plain_kernels checks them.
using PlainConstants = std::vector<std::pair<std::string, int64_t>>;

// A plain kernel on every GPU of the process: loaded at the first use on each, and kept as every kernel is. Make it
// once and keep it: a function-local static, or memory that is never freed.
class PlainKernel {
 public:
    // `name`: a row of deep_gemm.jit.plain_kernels. Nothing is compiled yet.
    explicit PlainKernel(std::string name, PlainConstants constants = {})
        : name_(std::move(name)), what_("the kernel " + name_), constants_(std::move(constants)) {}
    PlainKernel(const PlainKernel&) = delete;
    PlainKernel& operator=(const PlainKernel&) = delete;

    // The kernel in the driver. The first call on a GPU compiles or loads: make it before memory is taken. Works during
    // stream capture; releases the GIL then. Throws Error(kLaunch), PythonError.
    driver::Function get(const Gpu& gpu);

    const std::string& name() const { return name_; }
    const std::string& what() const { return what_; }        // for messages
    size_t num_arguments() const { return num_arguments_; }  // of the entry; known after `get`

 private:
    driver::Kernel load(const Gpu& gpu, bool is_refused);
    driver::Kernel load_or_rebuild(const Gpu& gpu);

    std::string name_, what_;
    PlainConstants constants_;
    size_t num_arguments_ = 0;
    std::vector<driver::Kernel> loaded_{};  // by ordinal
};

struct PlainGrid {
    unsigned x = 1, y = 1, z = 1;
};

inline constexpr size_t kMaxKernelArguments = 32;

// How a plain kernel is launched.
struct PlainShape {
    PlainGrid grid;
    unsigned threads = 0;       // of a CTA, all in x
    unsigned shared_bytes = 0;  // dynamic, at most 48 KiB
};

// Launch on `stream`; in compile mode only load. `arguments`: the addresses of the entry's arguments, as many as it
// has. Releases the GIL while the driver enqueues. Throws Error(kLaunch), and what PlainKernel::get throws.
void launch_plain(PlainKernel& kernel, const Gpu& gpu, const PlainShape& shape, void** arguments, void* stream);

// Make the builtin of _C.make_plain_kernel (bind_runtime.cpp says how it is called); it lives for the rest of the
// process. Throws Error(kArgument), PythonError.
Reference make_plain_builtin(const std::string& name, const PlainConstants& constants, unsigned threads,
                             unsigned shared_bytes);

// The kernel behind such a builtin; null for any other object.
struct PlainBuiltin;
PlainBuiltin* find_plain_builtin(PyObject* object);

// Load it on `gpu`, as its first launch there would. Throws what PlainKernel::get throws.
void load_plain_builtin(PlainBuiltin& builtin, const Gpu& gpu);

// Read a grid: an int, or a tuple of up to 3. Throws Error(kArgument).
PlainGrid parse_plain_grid(PyObject* object);

// Launch it with `count` arguments of 8 bytes each. Throws Error(kArgument) for another number of arguments than the
// kernel's, and what launch_plain throws.
void launch_plain_builtin(PlainBuiltin& builtin, const Gpu& gpu, const PlainGrid& grid, uint64_t* slots, size_t count,
                          void* stream);

// Make the builtin of _C.make_planned_call (planned_call.cpp); it lives for the rest of the process. `written`: the
// arguments that its kernels write. Throws PythonError.
Reference make_planned_builtin(const std::string& name, PyObject* planner, const std::vector<size_t>& written);

}  // namespace deep_gemm
