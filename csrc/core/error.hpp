// Typed errors. Each kind is raised in Python as the class of the same name in deep_gemm/errors.py; every message says
// value, rule and remedy.
#pragma once

#include <stdexcept>
#include <string>

namespace deep_gemm {

enum class ErrorKind {
    kProblem,   // ProblemError: a problem or config that cannot exist
    kConfig,    // ConfigError: a config that is not legal
    kDtype,     // DtypeError
    kShape,     // ShapeError
    kLayout,    // LayoutError: strides, alignment, overlap
    kDevice,    // DeviceError
    kArgument,  // ArgumentError: wrong type or unsupported option
    kLaunch,    // LaunchError: the driver refused or a kernel failed
    kModel,     // ModelError: a selector artefact that must not be used
};

class Error : public std::runtime_error {
 public:
    Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
    ErrorKind kind() const { return kind_; }

 private:
    ErrorKind kind_;
};

}  // namespace deep_gemm
