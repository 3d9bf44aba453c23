// Fields between Python and C++: arguments of constructors, values, dicts, reprs and the functions of
// deep_gemm.identity.
#pragma once

#include <string>
#include <vector>

#include "core/bind_values.hpp"
#include "core/field.hpp"

namespace deep_gemm {

// Fields of one class with their names as Python strings, made once and never freed.
class FieldNames {
 public:
    // `fields` must live as long as the process.
    explicit FieldNames(std::vector<const Field*> fields);

    pybind11::handle name(size_t index) const { return names_[index]; }

    // The arguments of a constructor in the order of the fields, null where not given: required fields by position or
    // name, the others by name. Throws Error(kArgument).
    std::vector<pybind11::handle> place(const char* type, const pybind11::args& args,
                                        const pybind11::kwargs& kwargs) const;

    // What help() and stubs show of the constructor.
    std::string signature() const;

 private:
    size_t find(pybind11::handle name) const;  // size() where there is none

    std::vector<const Field*> fields_;
    std::vector<pybind11::handle> names_;
    std::vector<size_t> required_;
};

// A value as Python has it: int, str or bool.
pybind11::object to_python(const Field& field, int64_t value);

// ", name=value" as repr() shows it, empty for a value at its default.
std::string repr_argument(const Field& field, int64_t value);

// Functions of deep_gemm.identity, which makes canonical JSON and keys; looked up once.
struct IdentityFunctions {
    pybind11::object problem_json, problem_key, read_problem, config_json, config_key, read_config;
};
const IdentityFunctions& identity();

}  // namespace deep_gemm
