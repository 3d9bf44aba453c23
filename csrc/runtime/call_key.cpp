#include "runtime/call_key.hpp"

#include <algorithm>

#include "core/python.hpp"

namespace deep_gemm {
namespace {

// What a word begins: no two kinds of arguments have equal words.
enum Kind : int64_t { kTensor, kNone, kBool, kInt, kText, kTuple };

constexpr Py_ssize_t kMaxItems = 3;

bool is_int(PyObject* object) { return PyLong_CheckExact(object); }

bool is_short_tuple(PyObject* object) {
    if (!PyTuple_CheckExact(object) || PyTuple_GET_SIZE(object) > kMaxItems) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i)
        if (!is_int(PyTuple_GET_ITEM(object, i))) return false;
    return true;
}

bool add_int(CallKey& key, PyObject* object) {
    int overflow = 0;
    key.add(PyLong_AsLongLongAndOverflow(object, &overflow));
    return overflow == 0;
}

bool add_tuple(CallKey& key, PyObject* object) {
    const Py_ssize_t size = PyTuple_GET_SIZE(object);
    key.add(kTuple + 16 * size);
    for (Py_ssize_t i = 0; i < size; ++i)
        if (!add_int(key, PyTuple_GET_ITEM(object, i))) return false;
    return true;
}

// Strings of options are few and short; 64 bits of Python's hash tell them apart.
bool add_text(CallKey& key, PyObject* object) {
    key.add(kText);
    key.add(PyObject_Hash(object));
    return true;
}

}  // namespace

CallKey& CallKey::operator=(const CallKey& other) {
    size_ = other.size_;
    std::copy_n(other.words_.begin(), size_, words_.begin());
    return *this;
}

void CallKey::add_tensor(const TensorView& view) {
    add(kTensor + (int64_t(view.dtype) << 8) + (int64_t(view.rank) << 16) + (int64_t(view.address % 16) << 24) +
        (int64_t(view.ordinal) << 32));
    for (int i = 0; i < view.rank; ++i) add(view.shape[size_t(i)]), add(view.strides[size_t(i)]);
}

bool CallKey::add_option(PyObject* object) {
    if (object == Py_None) return add(kNone), true;
    if (PyBool_Check(object)) return add(kBool), add(object == Py_True), true;
    if (is_int(object)) return add(kInt), add_int(*this, object);
    if (PyUnicode_CheckExact(object)) return add_text(*this, object);
    return is_short_tuple(object) && add_tuple(*this, object);
}

bool CallKey::operator==(const CallKey& other) const {
    return size_ == other.size_ && std::equal(words_.begin(), words_.begin() + ptrdiff_t(size_), other.words_.begin());
}

size_t CallKey::hash() const {
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < size_; ++i) hash = (hash ^ uint64_t(words_[i])) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
    return size_t(hash);
}

}  // namespace deep_gemm
