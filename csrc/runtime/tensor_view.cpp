#include "runtime/tensor_view.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "core/python.hpp"
#include "runtime/torch_access.hpp"

namespace deep_gemm {
namespace {

Reference get_attribute(PyObject* object, const char* name) {
    return Reference::take(PyObject_GetAttrString(object, name));
}

int64_t to_int64(PyObject* number) {
    const int64_t value = PyLong_AsLongLong(number);
    if (PyErr_Occurred()) throw PythonError();
    return value;
}

[[noreturn]] void fail(const char* name, const std::string& rest) {
    throw Error(ErrorKind::kArgument, std::string(name) + rest);
}

std::string type_name(PyObject* object) {
    return utf8_of(get_attribute(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__qualname__").get());
}

bool is_true(PyObject* object) {
    return object == Py_True || (object != nullptr && object != Py_False && PyObject_IsTrue(object) == 1);
}

bool is_grad_enabled(const TorchAccess& torch) {
    return is_true(Reference::take(PyObject_CallMethodNoArgs(torch.torch_module, torch.is_grad_enabled)).get());
}

// As torch does: to write a tensor whose gradient is asked for would make that gradient wrong in silence.
void check_grad(const char* name, PyObject* object) {
    if (is_in_graph(object))
        fail(name,
             ".requires_grad = True: it is written, and no graph is recorded; call this op under "
             "torch.no_grad(), or pass " +
                 std::string(name) + ".detach().");
}

Dtype dtype_of(const dlpack::Tensor& tensor) {
    if (tensor.type_lanes != 1) return Dtype::kOther;
    if (tensor.type_code == dlpack::kFloat8E4M3Fn && tensor.type_bits == 8) return Dtype::kFloat8E4M3;
    if (tensor.type_code == dlpack::kFloat && tensor.type_bits == 32) return Dtype::kFloat32;
    if (tensor.type_code == dlpack::kBfloat && tensor.type_bits == 16) return Dtype::kBfloat16;
    if (tensor.type_code == dlpack::kInt && tensor.type_bits == 32) return Dtype::kInt32;
    if (tensor.type_code == dlpack::kFloat && tensor.type_bits == 16) return Dtype::kFloat16;
    if (tensor.type_code == dlpack::kUint && tensor.type_bits == 8) return Dtype::kUint8;
    return Dtype::kOther;
}

DeviceKind device_kind_of(const dlpack::Tensor& tensor) {
    if (tensor.device_type == dlpack::kCuda || tensor.device_type == dlpack::kCudaManaged) return DeviceKind::kCuda;
    // Pinned host memory belongs to a CPU tensor.
    if (tensor.device_type == dlpack::kCpu || tensor.device_type == dlpack::kCudaHost) return DeviceKind::kCpu;
    return DeviceKind::kOther;
}

bool read_by_exchange(const TorchAccess& torch, PyObject* object, TensorView& view) {
    dlpack::Tensor tensor;
    if (torch.exchange->tensor_from_object(object, &tensor) != 0) return false;
    view.address = reinterpret_cast<uint64_t>(tensor.data) + tensor.byte_offset;
    view.rank = tensor.ndim;
    std::copy_n(tensor.shape, std::min(view.rank, kMaxRank), view.shape.begin());
    std::copy_n(tensor.strides, std::min(view.rank, kMaxRank), view.strides.begin());
    view.dtype = dtype_of(tensor);
    view.device_kind = device_kind_of(tensor);
    view.ordinal = view.device_kind == DeviceKind::kCuda ? tensor.device_id : 0;
    return true;
}

void copy_sizes(const Reference& source, std::array<int64_t, kMaxRank>& target, int& rank) {
    const Reference sizes = Reference::take(PySequence_Tuple(source.get()));
    rank = int(PyTuple_GET_SIZE(sizes.get()));
    for (int i = 0; i < std::min(rank, kMaxRank); ++i) target[i] = to_int64(PyTuple_GET_ITEM(sizes.get(), i));
}

void set_device(PyObject* device, TensorView& view) {
    const std::string kind = str(get_attribute(device, "type").get());
    view.device_kind = kind == "cpu"    ? DeviceKind::kCpu
                       : kind == "cuda" ? DeviceKind::kCuda
                       : kind == "meta" ? DeviceKind::kMeta
                                        : DeviceKind::kOther;
    const Reference index = get_attribute(device, "index");
    view.ordinal = view.device_kind == DeviceKind::kCuda && index.get() != Py_None ? int(to_int64(index.get())) : 0;
}

// `is_shape_only`: a fake or meta tensor, which has sizes but no memory. Throws PythonError.
TensorView read_by_attributes(PyObject* tensor, bool is_shape_only) {
    TensorView view;
    set_device(get_attribute(tensor, "device").get(), view);
    if (is_shape_only) view.device_kind = DeviceKind::kMeta;
    copy_sizes(get_attribute(tensor, "shape"), view.shape, view.rank);
    copy_sizes(Reference::take(PyObject_CallMethod(tensor, "stride", nullptr)), view.strides, view.rank);
    view.dtype = parse_dtype(str(get_attribute(tensor, "dtype").get()));
    if (view.device_kind == DeviceKind::kMeta) return view;
    const Reference address = Reference::take(PyObject_CallMethod(tensor, "data_ptr", nullptr));
    view.address = PyLong_AsUnsignedLongLong(address.get());
    if (PyErr_Occurred()) throw PythonError();
    return view;
}

void read_plain(const TorchAccess& torch, const char* name, PyObject* object, TensorView& view) {
    if (torch.exchange != nullptr && read_by_exchange(torch, object, view)) return;
    PyErr_Clear();  // a meta, sparse or functorch tensor: attributes tell which
    try {
        view = read_by_attributes(object, false);
    } catch (const PythonError&) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) throw;  // an interrupt says nothing about the tensor
        fail(name, ": a tensor without plain strided memory (" + take_error_text() + "); pass a dense tensor.");
    }
}

bool may_be_negated(const TensorView& view) {
    const uint64_t part = view.dtype == Dtype::kFloat32 ? 4 : view.dtype == Dtype::kFloat16 ? 2 : 0;
    if (part == 0 || view.address % (2 * part) != part) return false;
    for (int i = 0; i < std::min(view.rank, kMaxRank); ++i)
        if (view.shape[i] > 1 && view.strides[i] % 2 != 0) return false;
    return true;
}

// `x.conj().imag` is a view whose memory holds the negated values. It lies in complex numbers of FP32 or FP16, in the
// second half of each: its address is no multiple of their size and its strides are even, so that ordinary operands
// skip the question.
void check_not_negated(const TorchAccess& torch, const char* name, PyObject* object, const TensorView& view) {
    if (view.device_kind == DeviceKind::kMeta || !may_be_negated(view)) return;
    const Reference negated = Reference::take(PyObject_CallMethodNoArgs(object, torch.is_neg));
    if (is_true(negated.get())) fail(name, ": a lazily negated view; pass " + std::string(name) + ".resolve_neg().");
}

// Tensors keep their sizes when their storage is freed, as sharded training leaves weights. Their address is then what
// their offset is, which no view below this bound tells from a real one; real addresses below it are rare.
constexpr uint64_t kLowestPlainAddress = uint64_t(1) << 33;

bool has_elements(const TensorView& view) {
    const int rank = std::min(view.rank, kMaxRank);
    return std::all_of(view.shape.begin(), view.shape.begin() + rank, [](int64_t size) { return size != 0; });
}

void check_memory(const char* name, PyObject* object, const TensorView& view) {
    if (view.address >= kLowestPlainAddress || view.device_kind == DeviceKind::kMeta || !has_elements(view)) return;
    const Reference storage = Reference::take(PyObject_CallMethod(object, "untyped_storage", nullptr));
    const Reference address = Reference::take(PyObject_CallMethod(storage.get(), "data_ptr", nullptr));
    if (PyLong_AsUnsignedLongLong(address.get()) == 0)
        fail(name,
             ": a tensor without memory, its storage was freed; restore its storage (gather sharded weights) "
             "before the call.");
}

bool is_fake(const TorchAccess& torch, PyObject* object) {
    return PyType_IsSubtype(Py_TYPE(object), torch.tensor_type) && PyObject_HasAttrString(object, "fake_mode");
}

bool is_recording() {
    const Reference function = import_attribute("deep_gemm.tracing", "is_recording");
    return is_true(Reference::take(PyObject_CallNoArgs(function.get())).get());
}

[[noreturn]] void fail_unreadable(const TorchAccess& torch, const char* name, PyObject* object) {
    const std::string what = std::string(name) + " = " +
                             (PyType_IsSubtype(Py_TYPE(object), torch.tensor_type) ? "a " : "an object of type ") +
                             type_name(object);
    if (PyType_IsSubtype(Py_TYPE(object), torch.tensor_type))
        throw Error(ErrorKind::kArgument,
                    what + ": wrapper tensors are not supported; pass the plain torch.Tensor inside.");
    throw Error(ErrorKind::kArgument, what + ": must be a torch.Tensor.");
}

}  // namespace

int64_t element_bytes(Dtype dtype) {
    switch (dtype) {
        case Dtype::kFloat8E4M3: return 1;
        case Dtype::kBfloat16: return 2;
        case Dtype::kFloat16: return 2;
        case Dtype::kFloat32: return 4;
        case Dtype::kInt32: return 4;
        case Dtype::kUint8: return 1;
        default: return 0;
    }
}

const char* dtype_name(Dtype dtype) {
    switch (dtype) {
        case Dtype::kFloat8E4M3: return "torch.float8_e4m3fn";
        case Dtype::kBfloat16: return "torch.bfloat16";
        case Dtype::kFloat16: return "torch.float16";
        case Dtype::kFloat32: return "torch.float32";
        case Dtype::kInt32: return "torch.int32";
        case Dtype::kUint8: return "torch.uint8";
        default: return "another dtype";
    }
}

Dtype parse_dtype(const std::string& name) {
    const std::string bare = name.rfind("torch.", 0) == 0 ? name.substr(6) : name;
    for (Dtype dtype :
         {Dtype::kFloat8E4M3, Dtype::kBfloat16, Dtype::kFloat16, Dtype::kFloat32, Dtype::kInt32, Dtype::kUint8})
        if (bare == dtype_name(dtype) + 6) return dtype;
    return Dtype::kOther;
}

void read_operand(const char* name, PyObject* object, Operand& operand) {
    const TorchAccess& torch = torch_access();
    operand.name = name, operand.object = object;
    if (is_plain_tensor_type(torch, Py_TYPE(object))) {
        read_plain(torch, name, object, operand.view);
        check_memory(name, object, operand.view);
        return check_not_negated(torch, name, object, operand.view);
    }
    if (const TensorView* described = find_described(object)) {
        operand.view = *described;
        return;
    }
    if (!is_fake(torch, object)) fail_unreadable(torch, name, object);
    if (is_recording()) throw RecordedCall();
    operand.view = read_by_attributes(object, true);
}

void read_output(const char* name, PyObject* object, Operand& operand) {
    read_operand(name, object, operand);
    if (!operand.view.is_described) check_grad(name, object);
}

void transpose(Operand& operand) {
    operand.is_transposed = !operand.is_transposed;
    const int rank = operand.view.rank;
    if (rank != 2 && rank != 3) return;
    std::swap(operand.view.shape[rank - 2], operand.view.shape[rank - 1]);
    std::swap(operand.view.strides[rank - 2], operand.view.strides[rank - 1]);
}

bool is_in_graph(PyObject* object) {
    const TorchAccess& torch = torch_access();
    const Reference requires_grad = Reference::take(PyObject_GetAttr(object, torch.requires_grad));
    return is_true(requires_grad.get()) && is_grad_enabled(torch);
}

bool is_plain(PyObject* object) {
    return is_plain_tensor_type(torch_access(), Py_TYPE(object)) || find_described(object) != nullptr;
}

bool is_tensor(PyObject* object) {
    return PyType_IsSubtype(Py_TYPE(object), torch_access().tensor_type) || find_described(object) != nullptr;
}

void* current_stream(int ordinal) {
    const TorchAccess& torch = torch_access();
    if (torch.exchange == nullptr) {
        const Reference function = import_attribute("torch._C", "_cuda_getCurrentRawStream");
        const Reference handle = Reference::take(PyObject_CallFunction(function.get(), "i", ordinal));
        return PyLong_AsVoidPtr(handle.get());
    }
    void* stream = nullptr;
    if (torch.exchange->current_work_stream(dlpack::kCuda, ordinal, &stream) != 0) throw PythonError();
    return stream;
}

}  // namespace deep_gemm
