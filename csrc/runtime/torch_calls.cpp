#include "runtime/torch_calls.hpp"

#include <pybind11/stl.h>

#include <string>

namespace py = pybind11;

namespace deep_gemm {
namespace {

py::object function(const char* name) { return py::module_::import("deep_gemm.stream").attr(name); }

}  // namespace

py::object stream_handle(void* stream, const TensorView& view) {
    const bool is_current = !view.is_described && stream == current_stream(view.ordinal);
    return is_current ? py::none() : py::object(py::int_(reinterpret_cast<uint64_t>(stream)));
}

py::object tensor_of(const Operand& operand) {
    if (!operand.is_present()) return py::none();
    const py::handle tensor(operand.object);
    const bool is_exchanged = operand.is_transposed && operand.view.rank >= 2;  // not scales per row
    return is_exchanged ? py::object(tensor.attr("mT")) : py::reinterpret_borrow<py::object>(tensor);
}

const char* recipe_name(Recipe recipe) {
    return recipe == Recipe::k1d1d ? "1d1d" : recipe == Recipe::kPerRow ? "per_row" : "1d2d";
}

void run_reference(Op op, const py::dict& named, const py::object& stream) {
    function("run_reference")(std::string(op_name(op)), named, stream);
}

py::object empty_fp8(int64_t rows, int64_t columns, int ordinal, const py::object& stream) {
    return function("empty_fp8")(rows, columns, ordinal, stream);
}

py::object make_ks_tensor(const std::vector<int64_t>& ks, int ordinal, const py::object& stream) {
    return function("make_ks_tensor")(ks, ordinal, stream);
}

void copy_matrices(const Operand& d, const Operand& c, const py::object& stream) {
    function("copy_matrices")(tensor_of(d), tensor_of(c), stream);
}

}  // namespace deep_gemm
