#include "runtime/torch_calls.hpp"

#include <string>
#include <utility>

namespace deep_gemm {
namespace {

template <class... Arguments>
Reference call(const char* name, const char* format, Arguments... arguments) {
    const Reference function = import_attribute("deep_gemm.stream", name);
    return Reference::take(PyObject_CallFunction(function.get(), format, arguments...));
}

Reference make_list(const std::vector<int64_t>& values) {
    Reference list = Reference::take(PyList_New(Py_ssize_t(values.size())));
    for (size_t i = 0; i < values.size(); ++i)
        PyList_SET_ITEM(list.get(), Py_ssize_t(i), Reference::take(PyLong_FromLongLong(values[i])).release());
    return list;
}

}  // namespace

Reference stream_handle(void* stream, const TensorView& view) {
    const bool is_current = !view.is_described && stream == current_stream(view.ordinal);
    return is_current ? Reference::borrow(Py_None) : Reference::take(PyLong_FromVoidPtr(stream));
}

Reference tensor_of(const Operand& operand) {
    if (!operand.is_present()) return Reference::borrow(Py_None);
    Reference tensor = Reference::borrow(operand.object);
    if (operand.order != nullptr) {
        const DimOrder& order = *operand.order;
        tensor = Reference::take(PyObject_CallMethod(tensor.get(), "permute", "iii", order[0], order[1], order[2]));
    }
    const bool is_exchanged = operand.is_transposed && operand.view.rank >= 2;  // not scales per row
    return is_exchanged ? Reference::take(PyObject_GetAttrString(tensor.get(), "mT")) : std::move(tensor);
}

void set_item(PyObject* named, const char* name, const Reference& value) {
    if (PyDict_SetItemString(named, name, value.get()) != 0) throw PythonError();
}

void set_recipe(PyObject* named, Recipe recipe) {
    const char* name = recipe == Recipe::k1d1d ? "1d1d" : recipe == Recipe::kPerRow ? "per_row" : "1d2d";
    set_item(named, "recipe", Reference::take(PyUnicode_FromString(name)));
}

void run_reference(Op op, PyObject* named, PyObject* stream) {
    call("run_reference", "sOO", std::string(op_name(op)).c_str(), named, stream);
}

void run_vendor(Op op, PyObject* named, PyObject* stream) {
    call("run_vendor", "sOO", std::string(op_name(op)).c_str(), named, stream);
}

Reference empty_fp8(int64_t rows, int64_t columns, int ordinal, PyObject* stream) {
    return call("empty_fp8", "LLiO", static_cast<long long>(rows), static_cast<long long>(columns), ordinal, stream);
}

Reference make_cpu_tensor(const std::vector<int64_t>& ks) {
    return call("make_cpu_tensor", "(O)", make_list(ks).get());
}

Reference make_ks_tensor(const std::vector<int64_t>& ks, int ordinal, PyObject* stream) {
    return call("make_ks_tensor", "OiO", make_list(ks).get(), ordinal, stream);
}

void copy_matrices(const Operand& d, const Operand& c, PyObject* stream) {
    call("copy_matrices", "OOO", tensor_of(d).get(), tensor_of(c).get(), stream);
}

}  // namespace deep_gemm
