// Calls of plain kernels that Python plans once for each kind of arguments; after that they stay in C++.
#include <array>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "runtime/arguments.hpp"
#include "runtime/builtin.hpp"
#include "runtime/call_key.hpp"
#include "runtime/overlap.hpp"
#include "runtime/plain_kernel.hpp"
#include "runtime/policy.hpp"
#include "runtime/tensor_view.hpp"
#include "runtime/torch_calls.hpp"

namespace deep_gemm {
namespace {

// An entry takes about 1 KB. As many as the dispatch table holds, which is cleared likewise.
constexpr size_t kMaxPlans = 4096;
constexpr size_t kMaxMemory = 4;  // tensors that a plan takes

// A tensor of a call: an argument of it, or one that the plan takes memory for.
struct Place {
    bool is_taken;
    size_t index;
};

// An argument of a kernel: a number, or the address of a tensor and `number` bytes.
struct KernelArgument {
    bool is_number;
    Place place;
    uint64_t number;
};

struct PlannedLaunch {
    PlainBuiltin* kernel;
    PlainGrid grid;
    std::vector<KernelArgument> arguments;
};

struct Memory {
    Reference shape, strides, dtype;
};

// How a call is run. One that is declined is left to Python.
struct Plan {
    bool is_declined = false;
    std::vector<PlannedLaunch> launches{};
    std::vector<Memory> memory{};
    std::vector<Place> results{};
};

struct PlannedCall {
    std::string name;
    Reference planner;
    std::array<bool, kMaxArguments> is_written{};
    std::unordered_map<CallKey, std::shared_ptr<const Plan>, CallKeyHash> plans{};
    PyMethodDef method{};
};

// The arguments of a call; the tensors among them have views.
struct Arguments {
    PyObject* const* values;
    size_t count;
    std::array<TensorView, kMaxArguments> views;
    std::array<bool, kMaxArguments> is_tensor{};
    const TensorView* first = nullptr;  // tensor: all are on its GPU
};

[[noreturn]] void fail(const PlannedCall& call, const char* rule) {
    throw Error(ErrorKind::kArgument, call.name + ": " + rule);
}

int64_t number_of(PyObject* object) {
    const long long number = PyLong_AsLongLong(object);
    if (number == -1 && PyErr_Occurred()) throw PythonError();
    return number;
}

PyObject* item_of(const PlannedCall& call, PyObject* tuple, Py_ssize_t index, Py_ssize_t size) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != size) fail(call, "not a plan; mend the planner.");
    return PyTuple_GET_ITEM(tuple, index);
}

PyObject* tuple_of(const PlannedCall& call, PyObject* object) {
    if (!PyTuple_Check(object)) fail(call, "not a plan; mend the planner.");
    return object;
}

// Index i >= 0 is an argument of the call, -1 - i the memory number i of the plan.
Place take_place(const PlannedCall& call, const Arguments& arguments, const Plan& plan, PyObject* object) {
    const int64_t index = number_of(object);
    const bool is_taken = index < 0;
    const Place place{is_taken, size_t(is_taken ? -1 - index : index)};
    if (place.index >= (is_taken ? plan.memory.size() : arguments.count))
        fail(call, "no such tensor; mend the planner.");
    return place;
}

KernelArgument take_argument(const PlannedCall& call, const Arguments& arguments, const Plan& plan, PyObject* object) {
    if (!PyTuple_Check(object)) return {true, {}, uint64_t(number_of(object))};
    const Place place = take_place(call, arguments, plan, item_of(call, object, 0, 2));
    return {false, place, uint64_t(number_of(PyTuple_GET_ITEM(object, 1)))};
}

PlannedLaunch take_launch(const PlannedCall& call, const Arguments& arguments, const Plan& plan, PyObject* object) {
    PlannedLaunch launch{
        find_plain_builtin(item_of(call, object, 0, 3)), parse_plain_grid(PyTuple_GET_ITEM(object, 1)), {}};
    if (launch.kernel == nullptr) fail(call, "the kernel of a plan must be one of make_plain_kernel.");
    PyObject* given = tuple_of(call, PyTuple_GET_ITEM(object, 2));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i)
        launch.arguments.push_back(take_argument(call, arguments, plan, PyTuple_GET_ITEM(given, i)));
    if (launch.arguments.size() > kMaxKernelArguments) fail(call, "more arguments than a plain kernel has.");
    return launch;
}

Memory take_memory(const PlannedCall& call, PyObject* object) {
    return {Reference::borrow(tuple_of(call, item_of(call, object, 0, 3))),
            Reference::borrow(tuple_of(call, PyTuple_GET_ITEM(object, 1))),
            Reference::borrow(PyTuple_GET_ITEM(object, 2))};
}

// Read None, or (launches, memory, results).
std::shared_ptr<const Plan> take_plan(const PlannedCall& call, const Arguments& arguments, PyObject* object) {
    auto plan = std::make_shared<Plan>();
    plan->is_declined = object == Py_None;
    if (plan->is_declined) return plan;
    PyObject* memory = tuple_of(call, item_of(call, object, 1, 3));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(memory); ++i)
        plan->memory.push_back(take_memory(call, PyTuple_GET_ITEM(memory, i)));
    if (plan->memory.size() > kMaxMemory) fail(call, "a plan takes memory for at most 4 tensors.");
    PyObject* launches = tuple_of(call, PyTuple_GET_ITEM(object, 0));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(launches); ++i)
        plan->launches.push_back(take_launch(call, arguments, *plan, PyTuple_GET_ITEM(launches, i)));
    PyObject* results = tuple_of(call, PyTuple_GET_ITEM(object, 2));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); ++i)
        plan->results.push_back(take_place(call, arguments, *plan, PyTuple_GET_ITEM(results, i)));
    return plan;
}

std::shared_ptr<const Plan> get_plan(PlannedCall& call, const CallKey& key, const Arguments& arguments) {
    const auto found = call.plans.find(key);
    if (found != call.plans.end()) return found->second;
    const Reference planned =
        Reference::take(PyObject_Vectorcall(call.planner.get(), arguments.values, arguments.count, nullptr));
    std::shared_ptr<const Plan> plan = take_plan(call, arguments, planned.get());
    if (call.plans.size() >= kMaxPlans) call.plans.clear();
    call.plans.insert_or_assign(key, plan);
    return plan;
}

// The tensors of a plan in memory.
struct Taken {
    std::array<Reference, kMaxMemory> tensors;
    std::array<uint64_t, kMaxMemory> addresses;
};

void take(const Plan& plan, const Gpu& gpu, Taken& taken) {
    for (size_t i = 0; i < plan.memory.size(); ++i) {
        const Memory& memory = plan.memory[i];
        TakenMemory one = empty_strided(gpu, memory.shape.get(), memory.strides.get(), memory.dtype.get());
        taken.tensors[i] = std::move(one.tensor), taken.addresses[i] = one.view.address;
    }
}

uint64_t value_of(const KernelArgument& argument, const Arguments& arguments, const Taken& taken) {
    if (argument.is_number) return argument.number;
    const Place& place = argument.place;
    return (place.is_taken ? taken.addresses[place.index] : arguments.views[place.index].address) + argument.number;
}

void launch(const Plan& plan, const Gpu& gpu, const Arguments& arguments, const Taken& taken) {
    if (plan.launches.empty()) return;
    void* stream = parse_stream(nullptr, gpu.ordinal, arguments.first->is_described);
    for (const PlannedLaunch& launch : plan.launches) {
        std::array<uint64_t, kMaxKernelArguments> slots;
        size_t count = 0;
        for (const KernelArgument& argument : launch.arguments) slots[count++] = value_of(argument, arguments, taken);
        launch_plain_builtin(*launch.kernel, gpu, launch.grid, slots.data(), count, stream);
    }
}

Reference take_result(const Place& place, const Arguments& arguments, Taken& taken) {
    if (!place.is_taken) return Reference::borrow(arguments.values[place.index]);
    return Reference::borrow(taken.tensors[place.index].get());
}

PyObject* make_result(const Plan& plan, const Arguments& arguments, Taken& taken) {
    if (plan.results.empty()) return Py_NewRef(Py_None);
    if (plan.results.size() == 1) return take_result(plan.results[0], arguments, taken).release();
    Reference result = Reference::take(PyTuple_New(Py_ssize_t(plan.results.size())));
    for (size_t i = 0; i < plan.results.size(); ++i)
        PyTuple_SET_ITEM(result.get(), Py_ssize_t(i), take_result(plan.results[i], arguments, taken).release());
    return result.release();
}

// Read an argument that is a plain tensor in the memory of the GPU of those before it.
bool read_tensor(PyObject* object, bool is_written, TensorView& view, const TensorView*& first) {
    Operand operand;
    try {
        read_operand("x", object, operand);
    } catch (const Error&) {  // no plain memory: Python's to say
        return false;
    }
    view = operand.view;
    if (view.device_kind != DeviceKind::kCuda || view.rank > kMaxRank || view.dtype == Dtype::kOther) return false;
    if (first == nullptr) first = &view;
    return view.ordinal == first->ordinal && !(is_written && !view.is_described && is_in_graph(object));
}

// Describe the arguments; returns false where no plan is made for such.
bool read_arguments(const PlannedCall& call, Arguments& arguments, CallKey& key) {
    for (size_t i = 0; i < arguments.count; ++i) {
        PyObject* object = arguments.values[i];
        if (key.add_option(object)) continue;
        const bool is_read =
            is_plain(object) && read_tensor(object, call.is_written[i], arguments.views[i], arguments.first);
        if (!is_read) return false;
        arguments.is_tensor[i] = true;
        key.add_tensor(arguments.views[i]);
    }
    return arguments.first != nullptr;
}

// Whether something that is written lies in the memory of another argument: Python's to say, and no plan knows it.
bool overlaps(const PlannedCall& call, const Arguments& arguments) {
    for (size_t d = 0; d < arguments.count; ++d)
        for (size_t i = 0; call.is_written[d] && arguments.is_tensor[d] && i < arguments.count; ++i)
            if (i != d && arguments.is_tensor[i] && may_overlap(arguments.views[i], arguments.views[d])) return true;
    return false;
}

PyObject* run(PlannedCall& call, PyObject* const* values, Py_ssize_t count) {
    if (size_t(count) > kMaxArguments) fail(call, "takes at most 8 arguments.");
    Arguments arguments{.values = values, .count = size_t(count), .views = {}};
    CallKey key;
    key.add(int64_t(policy_version()));
    if (!read_arguments(call, arguments, key) || overlaps(call, arguments)) Py_RETURN_NOTIMPLEMENTED;
    const Gpu& gpu = get_gpu(arguments.first->ordinal);
    if (!gpu.unsupported.empty()) Py_RETURN_NOTIMPLEMENTED;
    const std::shared_ptr<const Plan> plan = get_plan(call, key, arguments);
    if (plan->is_declined) Py_RETURN_NOTIMPLEMENTED;
    Taken taken;
    take(*plan, gpu, taken);
    launch(*plan, gpu, arguments, taken);
    return make_result(*plan, arguments, taken);
}

PyObject* call_planned(PyObject* self, PyObject* const* values, Py_ssize_t count) {
    return call_guarded([&] { return run(state_of<PlannedCall>(self), values, count); });
}

}  // namespace

Reference make_planned_builtin(const std::string& name, PyObject* planner, const std::vector<size_t>& written) {
    auto call = std::unique_ptr<PlannedCall>(new PlannedCall{.name = name, .planner = Reference::borrow(planner)});
    for (size_t index : written) call->is_written.at(index) = true;
    call->method = {call->name.c_str(), as_method(&call_planned), METH_FASTCALL,
                    "Run the plan of such arguments, which is made at the first call with them."};
    return make_builtin(std::move(call));
}

}  // namespace deep_gemm
