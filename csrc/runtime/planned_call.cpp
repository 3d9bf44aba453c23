// Calls of plain kernels that Python plans once for each kind of operand; after that they stay in C++.
#include <array>
#include <exception>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/error.hpp"
#include "runtime/arguments.hpp"
#include "runtime/plain_kernel.hpp"
#include "runtime/tensor_view.hpp"
#include "runtime/torch_access.hpp"

namespace deep_gemm {
namespace {

constexpr size_t kMaxPlans = 4096, kMaxOutputs = 3;
constexpr size_t kTensorWords = 4 + 2 * kMaxRank;
using Key = std::array<int64_t, 2 * kTensorWords>;  // what a plan depends on: x, and the tensor after it

struct KeyHash {
    size_t operator()(const Key& key) const {
        uint64_t hash = 0xCBF29CE484222325u;
        for (int64_t word : key) hash = (hash ^ uint64_t(word)) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
        return size_t(hash);
    }
};

// How a call is launched. A plan without a kernel only returns its outputs; one without outputs returns None.
struct Plan {
    PlainBuiltin* kernel = nullptr;
    PlainGrid grid{};
    std::vector<Reference> outputs{};  // tuples (shape, strides, dtype): arguments of the allocator
    std::vector<uint64_t> numbers{};
};

struct PlannedCall {
    Reference planner, allocator;
    std::string name;
    std::unordered_map<Key, std::shared_ptr<const Plan>, KeyHash> plans{};
    PyMethodDef method{};
};

// The address of torch's dtype, of which there is one for each.
int64_t identify_dtype(PyObject* object, const TensorView& view) {
    if (view.is_described) return int64_t(view.dtype);
    return int64_t(reinterpret_cast<intptr_t>(Reference::take(PyObject_GetAttrString(object, "dtype")).get()));
}

// Describe a tensor in `words`.
void describe(PyObject* object, const TensorView& view, int64_t* words) {
    *words++ = identify_dtype(object, view);
    *words++ = view.rank;
    *words++ = view.ordinal;
    *words++ = int64_t(view.address % 16);
    for (int i = 0; i < kMaxRank; ++i) *words++ = view.shape[size_t(i)];
    for (int i = 0; i < kMaxRank; ++i) *words++ = view.strides[size_t(i)];
}

std::vector<uint64_t> take_numbers(PyObject* tuple) {
    std::vector<uint64_t> numbers;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
        const long long number = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (number == -1 && PyErr_Occurred()) throw PythonError();
        numbers.push_back(uint64_t(number));
    }
    return numbers;
}

// Read None, or (kernel or None, grid, outputs, numbers).
std::shared_ptr<const Plan> take_plan(const std::string& name, PyObject* object) {
    auto plan = std::make_shared<Plan>();
    if (object == Py_None) return plan;
    PyObject *kernel = nullptr, *grid = nullptr, *outputs = nullptr, *numbers = nullptr;
    if (!PyArg_ParseTuple(object, "OOO!O!", &kernel, &grid, &PyTuple_Type, &outputs, &PyTuple_Type, &numbers))
        throw PythonError();
    const Py_ssize_t count = PyTuple_GET_SIZE(outputs);
    if (count < 1 || size_t(count) > kMaxOutputs)
        throw Error(ErrorKind::kArgument, name + ": a plan must have 1 to 3 outputs; mend the planner.");
    for (Py_ssize_t i = 0; i < count; ++i) plan->outputs.push_back(Reference::borrow(PyTuple_GET_ITEM(outputs, i)));
    if (kernel == Py_None) return plan;
    plan->kernel = find_plain_builtin(kernel);
    if (plan->kernel == nullptr)
        throw Error(ErrorKind::kArgument, name + ": the kernel of a plan must be one of make_plain_kernel.");
    plan->grid = parse_plain_grid(grid);
    plan->numbers = take_numbers(numbers);
    return plan;
}

std::shared_ptr<const Plan> get_plan(PlannedCall& call, const Key& key, PyObject* x, PyObject* extra) {
    const auto found = call.plans.find(key);
    if (found != call.plans.end()) return found->second;
    const Reference planned = Reference::take(PyObject_CallFunctionObjArgs(call.planner.get(), x, extra, nullptr));
    std::shared_ptr<const Plan> plan = take_plan(call.name, planned.get());
    if (call.plans.size() < kMaxPlans) call.plans.emplace(key, plan);
    return plan;
}

Reference allocate(const PlannedCall& call, PyObject* arguments) {
    return Reference::take(PyObject_Vectorcall(call.allocator.get(), &PyTuple_GET_ITEM(arguments, 0),
                                               size_t(PyTuple_GET_SIZE(arguments)), nullptr));
}

// The outputs of a plan, with the kernel enqueued that writes them.
PyObject* run(PlannedCall& call, const Plan& plan, const Gpu& gpu, const TensorView& x, const TensorView* extra) {
    if (plan.outputs.empty()) Py_RETURN_NONE;
    std::array<Reference, kMaxOutputs> outputs;
    std::vector<uint64_t> slots{x.address};
    slots.reserve(2 + kMaxOutputs + plan.numbers.size());
    for (size_t i = 0; i < plan.outputs.size(); ++i) {
        outputs[i] = allocate(call, plan.outputs[i].get());
        slots.push_back(make_operand("output", outputs[i].get()).view.address);
    }
    if (extra != nullptr) slots.push_back(extra->address);
    slots.insert(slots.end(), plan.numbers.begin(), plan.numbers.end());
    if (plan.kernel != nullptr)
        launch_plain_builtin(*plan.kernel, gpu, plan.grid, slots.data(), slots.size(),
                             parse_stream(nullptr, x.ordinal, x.is_described));
    if (plan.outputs.size() == 1) return outputs[0].release();
    const Reference result = Reference::take(PyTuple_New(Py_ssize_t(plan.outputs.size())));
    for (size_t i = 0; i < plan.outputs.size(); ++i)
        PyTuple_SET_ITEM(result.get(), Py_ssize_t(i), outputs[i].release());
    return Py_NewRef(result.get());
}

// Whether `object` is plain memory of a GPU; reads it.
bool is_plain_cuda(PyObject* object, Operand& operand) {
    if (!is_plain_tensor_type(torch_access(), Py_TYPE(object)) && find_described(object) == nullptr) return false;
    read_operand("x", object, operand);
    return operand.view.device_kind == DeviceKind::kCuda && operand.view.rank <= kMaxRank;
}

// `values`: x, and a tensor or None. Returns NotImplemented where the memory of x's GPU is not what the allocator
// takes.
PyObject* call_planned(PlannedCall& call, PyObject* const* values, Py_ssize_t count) {
    if (count != 2) throw Error(ErrorKind::kArgument, call.name + "(): takes a tensor, and a tensor or None.");
    Operand x, extra;
    if (!is_plain_cuda(values[0], x)) Py_RETURN_NONE;
    const bool has_extra = values[1] != Py_None;
    if (has_extra && !is_plain_cuda(values[1], extra)) Py_RETURN_NONE;
    const Gpu& gpu = get_gpu(x.view.ordinal);
    if (!gpu.unsupported.empty()) Py_RETURN_NONE;
    if (!x.view.is_described && !is_current(gpu)) Py_RETURN_NOTIMPLEMENTED;
    Key key{};
    describe(values[0], x.view, key.data());
    if (has_extra) describe(values[1], extra.view, key.data() + kTensorWords);
    const std::shared_ptr<const Plan> plan = get_plan(call, key, values[0], values[1]);
    return run(call, *plan, gpu, x.view, has_extra ? &extra.view : nullptr);
}

PyObject* call_builtin(PyObject* self, PyObject* const* values, Py_ssize_t count) {
    try {
        return call_planned(**static_cast<PlannedCall**>(PyModule_GetState(self)), values, count);
    } catch (const Error& error) {
        set_python_error(error);
    } catch (const PythonError&) {
        // Python's error is set already.
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

PyModuleDef holder_definition{
    PyModuleDef_HEAD_INIT, "deep_gemm._C", nullptr, sizeof(PlannedCall*), nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

Reference make_planned_builtin(const std::string& name, PyObject* planner, PyObject* allocator) {
    auto call =
        std::unique_ptr<PlannedCall>(new PlannedCall{Reference::borrow(planner), Reference::borrow(allocator), name});
    call->method = {call->name.c_str(), reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_builtin)),
                    METH_FASTCALL, "Plan the call, or find its plan, and launch it: a tensor, and a tensor or None."};
    const Reference holder = Reference::take(PyModule_Create(&holder_definition));
    Reference function = Reference::take(PyCFunction_New(&call->method, holder.get()));
    *static_cast<PlannedCall**>(PyModule_GetState(holder.get())) = call.release();  // builtins are never freed
    return function;
}

}  // namespace deep_gemm
