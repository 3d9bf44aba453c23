// What a launch needs to know of an operand: address, shape, strides, dtype, device. It is read through DLPack's
// exchange API where torch has that, else through attributes. Views borrow: they are valid until the call that made
// them returns.
#pragma once

#include <Python.h>

#include <array>
#include <cstdint>
#include <string>

#include "core/error.hpp"

namespace deep_gemm {

enum class Dtype : uint8_t { kFloat8E4M3, kFloat32, kBfloat16, kFloat16, kInt32, kUint8, kOther };
enum class DeviceKind : uint8_t { kCpu, kCuda, kMeta, kOther };

// Bytes of an element; 0 for kOther.
int64_t element_bytes(Dtype dtype);
const char* dtype_name(Dtype dtype);
Dtype parse_dtype(const std::string& name);  // "float8_e4m3fn", with or without "torch."; kOther when unknown

inline constexpr int kMaxRank = 4;

struct TensorView {
    uint64_t address = 0;
    std::array<int64_t, kMaxRank> shape{};
    std::array<int64_t, kMaxRank> strides{};  // elements
    int rank = 0;                             // beyond kMaxRank only the rank itself is kept
    Dtype dtype = Dtype::kOther;
    DeviceKind device_kind = DeviceKind::kOther;
    int ordinal = 0;
    bool is_described = false;  // made from numbers by _C.TensorView, not from a tensor
};

// The caller's dim of each dim of a view of rank 3.
using DimOrder = std::array<uint8_t, 3>;

// An operand as the op computes with it; `name` is how messages call it.
struct Operand {
    const char* name = "";
    PyObject* object = nullptr;  // borrowed; null where the call has no such operand
    TensorView view;
    bool is_transposed = false;       // the view exchanges the last two dims of the caller's tensor
    const DimOrder* order = nullptr;  // of the dims before that; null: as the caller has them

    bool is_present() const { return object != nullptr; }
};

// Exchange the last two dims of the same memory; a rank other than 2 and 3 stays as it is, for the checks to name.
void transpose(Operand& operand);
inline Operand transposed(Operand operand) {
    transpose(operand);
    return operand;
}

// Thrown at the first fake operand of a call that torch is recording into a graph. The public ops catch it and put
// themselves into the graph; nothing else can.
struct RecordedCall : Error {
    RecordedCall()
        : Error(ErrorKind::kArgument,
                "a call that is traced into a graph: a graph holds public ops only; call one of them.") {}
};

// Look at `object`. Throws RecordedCall, PythonError, and Error(kArgument): not a tensor, a wrapper tensor without
// memory of its own, a sparse tensor, or one with elements whose storage was freed. One that requires grad is read like
// others: no graph is recorded.
void read_operand(const char* name, PyObject* object, Operand& operand);  // `operand` is empty before

// The same of a tensor that the call writes. Throws Error(kArgument) also: it requires grad while grad mode is on.
void read_output(const char* name, PyObject* object, Operand& operand);
inline Operand make_operand(const char* name, PyObject* object) {
    Operand operand;
    read_operand(name, object, operand);
    return operand;
}

// The view of a _C.TensorView, or null for any other object.
const TensorView* find_described(PyObject* object);

// Whether `object` is a tensor whose gradient is asked for while grad mode is on: then no op writes it.
bool is_in_graph(PyObject* object);

// Whether `object` is a tensor that is read at once: torch.Tensor, a subclass that behaves as that, or _C.TensorView.
bool is_plain(PyObject* object);

// Whether `object` is a Python tensor at all (torch.Tensor or a subclass, or _C.TensorView).
bool is_tensor(PyObject* object);

// The raw handle of the stream that torch would use now on CUDA device `ordinal`.
void* current_stream(int ordinal);

}  // namespace deep_gemm
