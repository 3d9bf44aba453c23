// The Python face of the public ops and of how this process runs them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/problem.hpp"
#include "runtime/arguments.hpp"
#include "runtime/bind_runtime.hpp"
#include "runtime/op.hpp"
#include "runtime/policy.hpp"
#include "runtime/scale_copy.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace deep_gemm {
namespace {

constexpr IntegerField kAlignmentField{"alignment", Problem::kAlignmentUnit, Problem::kMaxAlignment, 0, false};

using PythonParameters = std::vector<std::pair<std::string, std::optional<std::string>>>;

py::object make_python_op(const std::string& name, const std::string& kind, const std::string& layout, bool is_blocks,
                          const PythonParameters& parameters, size_t num_required, size_t num_positional,
                          const std::string& documentation) {
    if (num_required > num_positional || num_positional > parameters.size())
        throw Error(ErrorKind::kArgument,
                    name + ": must have num_required <= num_positional <= parameters; fix the row.");
    OpText text{.name = name,
                .op = parse_op(kind),
                .layout = layout,
                .group_layout = is_blocks ? GroupLayout::kBlocks : GroupLayout::kJoint,
                .parameters = {},
                .num_required = num_required,
                .num_positional = num_positional,
                .documentation = documentation};
    for (const auto& [parameter, alias] : parameters) text.parameters.push_back({parameter, alias.value_or("")});
    const py::str module("deep_gemm");
    return py::reinterpret_steal<py::object>(make_op(text, module.ptr()).release());
}

int parse_alignment(const py::object& alignment) { return int(parse_integer(alignment.ptr(), kAlignmentField)); }

// Callers pass 0 and 1, too.
bool parse_mode(const py::object& flag) {
    constexpr IntegerField kModeField{"flag", 0, 1, 0, false};
    if (PyBool_Check(flag.ptr())) return flag.ptr() == Py_True;
    return parse_integer(flag.ptr(), kModeField) == 1;
}

// The names of functions that return settings, each with a text of what was set last ("": nothing). A graph of
// torch.compile holds what such a function returned, and guards by the text (deep_gemm/tracing.py).
py::dict make_settings() {
    py::dict settings;
    for (const char* name : {"get_num_sms", "get_mk_alignment_for_contiguous_layout", "get_tc_util", "get_pdl",
                             "get_compile_mode", "is_batch_invariant"})
        settings[name] = "";
    return settings;
}

void note(const py::dict& settings, const char* name, const py::object& value) { settings[name] = py::str(value); }

void bind_limits(py::module_& m, const py::dict& settings) {
    m.def(
        "set_num_sms",
        [settings](const py::object& num_sms) {
            const int count = parse_num_sms(num_sms.ptr());
            set_num_sms(count);
            note(settings, "get_num_sms", py::cast(count));
        },
        "num_sms"_a,
        "Let launches of this process use `num_sms` SMs; 0, or more than the device has, means all. Raises: "
        "ArgumentError.");
    m.def(
        "get_num_sms", &get_num_sms,
        "Return the number of SMs in force: what set_num_sms set last, or else (also after set_num_sms(0)) the SMs of "
        "the current GPU, for which it opens the driver; 0 where there is no GPU.");
    m.def(
        "set_mk_alignment_for_contiguous_layout",
        [settings](const py::object& alignment) {
            set_mk_alignment(parse_alignment(alignment));
            note(settings, "get_mk_alignment_for_contiguous_layout", py::cast(get_mk_alignment()));
        },
        "alignment"_a,
        "Let the rows of every group of m-grouped contiguous products of this process start at multiples of "
        "`alignment`: a multiple of 8 up to 65536, 128 by default. Smaller ones leave fewer configs. Raises: "
        "ArgumentError.");
    m.def("get_mk_alignment_for_contiguous_layout", &get_mk_alignment,
          "Return what set_mk_alignment_for_contiguous_layout set last.");
    m.def(
        "set_tc_util",
        [settings](const py::object& ratio) {
            set_tc_util(parse_factor("ratio", ratio.ptr()));
            note(settings, "get_tc_util", py::cast(get_tc_util()));
        },
        "ratio"_a,
        "Keep the share of the tensor cores that the caller wants used, 0..1; numbers above 1 are percent. Accepted "
        "for compatibility: no kernel of SM90 limits itself by it. Raises: ArgumentError.");
    m.def("set_scale_copy_work", &set_scale_copy_work, "work"_a,
          "Copy row-major scales of dense, contiguous and masked FP8 products of at least `work` = m * n * k (m of "
          "masked groups: the expected rows of all) to the layout that TMA reads, before the product. At first 2.2e10; "
          "infinity: never. Raises: ArgumentError.");
    m.def("get_scale_copy_work", &get_scale_copy_work, "Return what set_scale_copy_work set last.");
    m.def(
        "with_scale_copies", [](const Problem& problem) { return with_scale_copies(problem); }, "problem"_a,
        "Return the problem that is run for operands of `problem` with row-major scales: one with MN-major scales "
        "where they are copied first, else `problem`.");
    m.def("get_tc_util", &get_tc_util, "Return what set_tc_util set last, within 0..1; 1.0 by default.");
}

void bind_switches(py::module_& m, const py::dict& settings) {
    m.def(
        "set_pdl",
        [settings](const py::object& is_enabled) {
            set_pdl(parse_flag("is_enabled", is_enabled.ptr()));
            note(settings, "get_pdl", py::cast(get_pdl()));
        },
        "is_enabled"_a,
        "Let kernels of this process start while the kernel before them in the stream ends (programmatic dependent "
        "launch); on by default. They touch memory only after it has ended. Raises: ArgumentError.");
    m.def("get_pdl", &get_pdl, "Return whether set_pdl is on.");
    m.def(
        "set_compile_mode",
        [settings](const py::object& flag) {
            set_compile_mode(parse_mode(flag));
            note(settings, "get_compile_mode", py::cast(get_compile_mode()));
        },
        "flag"_a,
        "Let calls of this process check their operands, choose, compile and load, and run nothing: no kernel is "
        "launched and no operand is read or written; off by default. Raises: ArgumentError.");
    m.def("get_compile_mode", &get_compile_mode, "Return whether set_compile_mode is on.");
    m.def(
        "set_batch_invariant",
        [settings](const py::object& is_enabled) {
            is_enabled.is_none() ? reset_batch_invariant()
                                 : set_batch_invariant(parse_flag("is_enabled", is_enabled.ptr()));
            // Also what None stands for now, which the environment says of each op kind.
            py::list held;
            for (const OpKind& kind : kOpKinds) held.append(is_batch_invariant(kind));
            note(settings, "is_batch_invariant", py::make_tuple(is_enabled, held));
        },
        "is_enabled"_a,
        "Limit selection of every op kind to configs with which a row of D does not depend on m, bit for bit (True), "
        "or of none (False); None goes back to what holds without a call: DG_BATCH_INVARIANT, or else BF16 alone is "
        "limited. Raises: ArgumentError.");
    m.def("is_batch_invariant", &get_batch_invariant,
          "Return what set_batch_invariant, called with it, restores: whether selection is limited so for all op kinds "
          "or for none; None where the default holds, which limits BF16 alone.");
    m.def(
        "is_batch_invariant", [](const std::string& op) { return is_batch_invariant(op_kind(parse_op(op))); }, "op"_a,
        "Return the field batch_invariant that calls of op kind `op` give their problems: False for kinds that never "
        "split K, because they need no limit. Raises: ProblemError.");
}

}  // namespace

void bind_ops(py::module_& m) {
    m.def(
        "make_op", &make_python_op, "name"_a, "kind"_a, "layout"_a, "is_blocks"_a, "parameters"_a, "num_required"_a,
        "num_positional"_a, "documentation"_a,
        "Make the builtin of one row of deep_gemm.ops. `kind`: the op kind; `layout`: 'nt', 'nn', 'tn' or 'tt'; "
        "`is_blocks`: the groups of K lie in 1-D blocks; `parameters`: (name, second name or None) in order, of which "
        "the first ones are required and those after `num_positional` keyword-only; `documentation`: the text "
        "signature and the docstring. Raises: ArgumentError, ProblemError.");
    const py::dict settings = make_settings();
    m.attr("SETTINGS") = settings;
    bind_limits(m, settings);
    bind_switches(m, settings);
}

}  // namespace deep_gemm
