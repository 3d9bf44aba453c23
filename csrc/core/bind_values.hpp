// pybind11 for our classes. Every file that binds includes it, by one of the headers that they share.
//
// Class.__new__ makes an instance that holds nothing until __init__ fills it, and pybind11 would hand methods memory
// that it never wrote. Here such an instance is an error.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <type_traits>

#include "core/error.hpp"

namespace deep_gemm {

struct Field;
struct OpKind;
struct Problem;
struct Config;
struct Device;
struct Choice;
class Selector;
struct TensorView;
struct KernelHandle;

template <typename T>
inline constexpr bool is_bound =
    std::is_same_v<T, Field> || std::is_same_v<T, OpKind> || std::is_same_v<T, Problem> || std::is_same_v<T, Config> ||
    std::is_same_v<T, Device> || std::is_same_v<T, Choice> || std::is_same_v<T, Selector> ||
    std::is_same_v<T, TensorView> || std::is_same_v<T, KernelHandle>;

}  // namespace deep_gemm

namespace pybind11::detail {

template <typename T>
class type_caster<T, std::enable_if_t<deep_gemm::is_bound<T>>> : public type_caster_base<T> {
 public:
    // Throws deep_gemm::Error(kArgument).
    bool load(handle source, bool convert) {
        if (this->typeinfo != nullptr && PyObject_TypeCheck(source.ptr(), this->typeinfo->type)) check_made(source);
        return type_caster_base<T>::load(source, convert);
    }

 private:
    void check_made(handle source) {
        auto* made = reinterpret_cast<instance*>(source.ptr());
        if (made->get_value_and_holder(this->typeinfo).value_ptr() != nullptr) return;
        throw deep_gemm::Error(deep_gemm::ErrorKind::kArgument,
                               std::string("a ") + Py_TYPE(source.ptr())->tp_name +
                                   " without a value: __new__ alone makes no usable one; call the class.");
    }
};

}  // namespace pybind11::detail
