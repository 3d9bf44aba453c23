#include "runtime/torch_calls.hpp"

#include <iterator>
#include <string>
#include <utility>

#include "runtime/torch_access.hpp"

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

Reference make_pair(int64_t first, int64_t second) {
    return Reference::take(PyTuple_Pack(2, Reference::take(PyLong_FromLongLong(first)).get(),
                                        Reference::take(PyLong_FromLongLong(second)).get()));
}

TakenMemory read_taken(Reference tensor) {
    const TensorView view = make_operand("memory", tensor.get()).view;
    return {std::move(tensor), view};
}

// What takes memory on the current GPU; null until it is first asked for.
PyObject* allocator = nullptr;

Reference find_allocator() {
    if (allocator == nullptr) {
        const Reference find = import_attribute("deep_gemm.stream", "find_allocator");
        set_allocator(Reference::take(PyObject_CallNoArgs(find.get())).get());
    }
    return Reference::borrow(allocator);
}

Reference new_empty_strided(PyObject* like, PyObject* shape, PyObject* strides, PyObject* dtype) {
    const Reference method = Reference::take(PyObject_GetAttrString(like, "new_empty_strided"));
    const Reference arguments = Reference::take(PyTuple_Pack(2, shape, strides));
    const Reference named = Reference::take(Py_BuildValue("{sO}", "dtype", dtype));
    return Reference::take(PyObject_Call(method.get(), arguments.get(), named.get()));
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

void set_allocator(PyObject* function) { Py_XSETREF(allocator, function == Py_None ? nullptr : Py_NewRef(function)); }

TakenMemory empty_strided(const Gpu& gpu, PyObject* shape, PyObject* strides, PyObject* dtype) {
    if (is_current(gpu)) {
        PyObject* arguments[] = {shape, strides, dtype};
        TakenMemory taken = read_taken(
            Reference::take(PyObject_Vectorcall(find_allocator().get(), arguments, std::size(arguments), nullptr)));
        // torch's own idea of the current GPU counts. It may be another than the driver's: where a GPU has no context
        // yet, torch goes back to it in its books alone.
        if (taken.view.ordinal == gpu.ordinal) return taken;
    }
    return read_taken(call("empty_strided", "OOOi", shape, strides, dtype, gpu.ordinal));
}

Reference empty_fp8(int64_t rows, int64_t columns, int ordinal, PyObject* stream) {
    if (stream == Py_None)
        return empty_strided(get_gpu(ordinal), make_pair(rows, columns).get(), make_pair(columns, 1).get(),
                             torch_access().float8_e4m3fn)
            .tensor;
    return call("empty_fp8", "LLiO", static_cast<long long>(rows), static_cast<long long>(columns), ordinal, stream);
}

TakenMemory make_logits(const Operand& like, int64_t rows, int64_t columns, Dtype dtype, PyObject* stream) {
    constexpr int64_t kPitchUnit = 64;
    const int64_t pitch = (columns + kPitchUnit - 1) / kPitchUnit * kPitchUnit;
    const Reference sizes = make_pair(rows, columns), strides = make_pair(pitch, 1);
    const bool is_bfloat16 = dtype == Dtype::kBfloat16;
    if ((stream != nullptr && stream != Py_None) || like.view.is_described)
        return read_taken(call("make_logits", "OOOiiO", like.object, sizes.get(), strides.get(), int(is_bfloat16),
                               like.view.ordinal, stream == nullptr ? Py_None : stream));
    PyObject* kind = is_bfloat16 ? torch_access().bfloat16 : torch_access().float32;
    if (like.view.device_kind == DeviceKind::kCuda)
        return empty_strided(get_gpu(like.view.ordinal), sizes.get(), strides.get(), kind);
    return read_taken(new_empty_strided(like.object, sizes.get(), strides.get(), kind));
}

void fill_with_infinity(const Operand& d, void* stream) {
    call("fill_with_infinity", "OO", d.object, stream_handle(stream, d.view).get());
}

Reference make_cpu_tensor(const std::vector<int64_t>& ks) {
    return call("make_cpu_tensor", "(O)", make_list(ks).get());
}

Reference make_ks_tensor(const std::vector<int64_t>& ks, int ordinal, PyObject* stream) {
    return call("make_ks_tensor", "OiO", make_list(ks).get(), ordinal, stream);
}

void add_signals(const Operand& signal, const Operand& groups, int64_t rows, int64_t block_rows, int64_t threshold,
                 PyObject* stream) {
    call("add_signals", "OOLLLO", signal.object, groups.object, static_cast<long long>(rows),
         static_cast<long long>(block_rows), static_cast<long long>(threshold), stream);
}

void copy_matrices(const Operand& d, const Operand& c, PyObject* stream) {
    call("copy_matrices", "OOO", tensor_of(d).get(), tensor_of(c).get(), stream);
}

}  // namespace deep_gemm
