// The builtin of a plain kernel: a launch from Python without a tuple or a dict of arguments.
#include <array>
#include <memory>

#include "core/error.hpp"
#include "runtime/arguments.hpp"
#include "runtime/builtin.hpp"
#include "runtime/plain_kernel.hpp"
#include "runtime/tensor_view.hpp"

namespace deep_gemm {

struct PlainBuiltin {
    PlainKernel kernel;
    unsigned threads, shared_bytes;
    PyMethodDef method{};
};

namespace {

// The arguments of a launch; each lies in 8 bytes, of which the driver copies as many as the parameter's type has.
struct Arguments {
    std::array<uint64_t, kMaxKernelArguments> slots{};
    size_t count = 0;
    TensorView place;  // of the first tensor: it says on which GPU and stream
    bool has_tensor = false;
};

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorKind::kArgument, message); }

unsigned parse_count(PyObject* object) {
    const long value = PyLong_Check(object) ? PyLong_AsLong(object) : -1;
    if (value >= 1 && value <= INT32_MAX) return unsigned(value);
    PyErr_Clear();
    fail("grid = " + short_repr(object) + ": must be an int >= 1, or a tuple of 1 to 3 of them; pass the CTAs.");
}

uint64_t bits_of(float value) {
    uint32_t bits;
    static_assert(sizeof bits == sizeof value);
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}

uint64_t read_tensor(PyObject* object, Arguments& arguments) {
    const TensorView view = make_operand("argument", object).view;
    const bool is_same_gpu = !arguments.has_tensor || view.ordinal == arguments.place.ordinal;
    if (view.device_kind != DeviceKind::kCuda || !is_same_gpu)
        throw Error(ErrorKind::kDevice, "argument = " + short_repr(object) +
                                            ": a tensor that is not on the GPU of the launch; move it there.");
    if (!arguments.has_tensor) arguments.place = view, arguments.has_tensor = true;
    return view.address;
}

uint64_t read_argument(PyObject* object, Arguments& arguments) {
    if (object == Py_None) return 0;
    if (PyFloat_CheckExact(object)) return bits_of(float(PyFloat_AS_DOUBLE(object)));
    if (!PyLong_Check(object)) return read_tensor(object, arguments);
    const long long value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) throw PythonError();
    return uint64_t(value);
}

void check_count(const PlainKernel& kernel, size_t count) {
    if (count != kernel.num_arguments())
        fail(kernel.name() + "(): " + std::to_string(count) + " arguments after the grid: it takes " +
             std::to_string(kernel.num_arguments()) + "; pass each of them.");
}

void call(PlainBuiltin& builtin, PyObject* const* values, Py_ssize_t count) {
    if (count < 1 || size_t(count) > kMaxKernelArguments + 1)
        fail(builtin.kernel.name() + "(): takes a grid and at most " + std::to_string(kMaxKernelArguments) +
             " arguments.");
    const PlainGrid grid = parse_plain_grid(values[0]);
    Arguments arguments;
    for (Py_ssize_t i = 1; i < count; ++i) arguments.slots[arguments.count++] = read_argument(values[i], arguments);
    if (!arguments.has_tensor)
        fail(builtin.kernel.name() + "(): no tensor among the arguments; pass one, whose GPU and stream are used.");
    const TensorView& place = arguments.place;
    launch_plain_builtin(builtin, get_supported_gpu(place.ordinal), grid, arguments.slots.data(), arguments.count,
                         parse_stream(nullptr, place.ordinal, place.is_described));
}

PyObject* call_builtin(PyObject* self, PyObject* const* values, Py_ssize_t count) {
    return call_guarded([&] {
        call(state_of<PlainBuiltin>(self), values, count);
        return Py_NewRef(Py_None);
    });
}

}  // namespace

PlainGrid parse_plain_grid(PyObject* object) {
    if (!PyTuple_Check(object)) return {parse_count(object)};
    const Py_ssize_t size = PyTuple_GET_SIZE(object);
    std::array<unsigned, 3> counts{1, 1, 1};
    if (size < 1 || size > 3) parse_count(object);
    for (Py_ssize_t i = 0; i < size; ++i) counts[size_t(i)] = parse_count(PyTuple_GET_ITEM(object, i));
    return {counts[0], counts[1], counts[2]};
}

PlainBuiltin* find_plain_builtin(PyObject* object) { return find_state<PlainBuiltin>(object); }

void load_plain_builtin(PlainBuiltin& builtin, const Gpu& gpu) { builtin.kernel.get(gpu); }

void launch_plain_builtin(PlainBuiltin& builtin, const Gpu& gpu, const PlainGrid& grid, uint64_t* slots, size_t count,
                          void* stream) {
    builtin.kernel.get(gpu);  // which says how many arguments there are
    check_count(builtin.kernel, count);
    std::array<void*, kMaxKernelArguments> addresses{};
    for (size_t i = 0; i < count; ++i) addresses[i] = &slots[i];
    const PlainShape shape{.grid = grid, .threads = builtin.threads, .shared_bytes = builtin.shared_bytes};
    launch_plain(builtin.kernel, gpu, shape, addresses.data(), stream);
}

Reference make_plain_builtin(const std::string& name, const PlainConstants& constants, unsigned threads,
                             unsigned shared_bytes) {
    constexpr unsigned kMaxThreads = 1024, kMaxShared = 48 << 10;
    if (threads < 1 || threads > kMaxThreads || shared_bytes > kMaxShared)
        fail(name + ": must have 1 to 1024 threads and at most 48 KiB of dynamic shared memory; pass such numbers.");
    auto builtin = std::unique_ptr<PlainBuiltin>(new PlainBuiltin{PlainKernel(name, constants), threads, shared_bytes});
    builtin->method = {builtin->kernel.name().c_str(), as_method(&call_builtin), METH_FASTCALL,
                       "Launch the kernel: the grid (CTAs, or a tuple of them in x, y, z), then its arguments."};
    return make_builtin(std::move(builtin));
}

}  // namespace deep_gemm
