// _C.OP_KINDS, _C.PROBLEM_FIELDS and _C.CONFIG_FIELDS.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/bind_fields.hpp"
#include "core/bindings.hpp"
#include "core/config.hpp"
#include "core/op_kind.hpp"
#include "core/problem.hpp"

namespace py = pybind11;

namespace deep_gemm {
namespace {

py::tuple names_of(std::span<const char* const> names, uint32_t bits) {
    py::list out;
    for (size_t i = 0; i < names.size(); ++i)
        if (bits >> i & 1) out.append(names[i]);
    return py::tuple(out);
}

py::tuple words_of(const Field& field) { return names_of(field.words, ~uint32_t(0)); }

py::object default_of(const Field& field) {
    return field.is_required ? py::object(py::none()) : to_python(field, field.default_value);
}

void bind_field(py::module_& m) {
    py::class_<Field>(m, "Field", "The description of one field of a problem or a config. Immutable.")
        .def_property_readonly("name", [](const Field& self) { return self.name; })
        .def_property_readonly(
            "type", [](const Field& self) { return kFieldTypeNames[size_t(self.type)]; },
            "'integer', 'word' (one of `words`), 'flag' (a bool) or 'dims' (a subset of 'mnk').")
        .def_property_readonly(
            "role", [](const Field& self) { return kFieldRoleNames[size_t(self.role)]; },
            "'size', 'group', 'variant' or 'policy' of a problem; 'tile' or 'knob' of a config.")
        .def_property_readonly("default", &default_of, "None for a field that must be given.")
        .def_property_readonly("minimum", [](const Field& self) { return self.minimum; })
        .def_property_readonly("maximum", [](const Field& self) { return self.maximum; })
        .def_property_readonly("words", &words_of, "The values of a field of words, the default first; else ().")
        .def_property_readonly(
            "meaning", [](const Field& self) { return self.meaning; }, "One sentence.")
        .def("__repr__", [](const Field& self) { return "Field('" + std::string(self.name) + "')"; });
}

void bind_op_kind(py::module_& m) {
    py::class_<OpKind> kind(m, "OpKind", "One op kind and what differs between op kinds. Immutable.");
    kind.def_property_readonly("name", [](const OpKind& self) { return self.name; })
        .def_property_readonly(
            "family", [](const OpKind& self) { return self.family; },
            "Op kinds of a family and grouping share their checks and what else the host does for a call.")
        .def_property_readonly(
            "kernel", [](const OpKind& self) { return self.kernel; },
            "The header of its kernel in deep_gemm/include/deep_gemm; its class has the same name in CamelCase.")
        .def_property_readonly(
            "grouping", [](const OpKind& self) { return kGroupingNames[size_t(self.grouping)]; },
            "'dense', 'contiguous', 'masked', 'k_grouped', 'm_psum', 'k_psum', 'batched' or 'summed'.")
        .def_property_readonly(
            "is_fp8", [](const OpKind& self) { return self.is_fp8; }, "FP8 operands with scales; else BF16.")
        .def_property_readonly("is_grouped", &OpKind::is_grouped)
        .def_property_readonly("is_logits", &OpKind::is_logits, "Attention logits, not a product of matrices.")
        .def_property_readonly("is_paged", &OpKind::is_paged, "Attention logits of keys in pages.")
        .def_property_readonly("m_is_shared", &OpKind::m_is_shared,
                               "Groups lie one after the other among the m rows of A, padded to the alignment.")
        .def_property_readonly("has_room", &OpKind::has_room, "Every group has room for m rows.")
        .def_property_readonly("k_is_divided", &OpKind::k_is_divided, "Groups lie one after the other along K.")
        .def_property_readonly("has_ends", &OpKind::has_ends,
                               "The caller says where each group ends; the next starts at a multiple of the alignment.")
        .def_property_readonly(
            "sibling", [](const OpKind& self) { return self.sibling; },
            "The op kind whose records serve this one while it has none of its own; None where there is none.")
        .def_property_readonly("is_batched", &OpKind::is_batched, "Groups have m rows and a D of their own.")
        .def_property_readonly("is_summed", &OpKind::is_summed, "The products of all groups add up to one D.")
        .def_property_readonly("reads_groups", &OpKind::reads_groups, "Where groups begin or end is an operand.")
        .def_property_readonly(
            "knobs", [](const OpKind& self) { return names_of(kKnobNames, self.knobs.bits); },
            "Which of 'clusters', 'split_k' and 'swap_ab' a config may use.")
        .def("__repr__", [](const OpKind& self) { return "OpKind('" + std::string(self.name) + "')"; });
    for (const ProblemField& field : kProblemFields)
        if (field.type == FieldType::kWord)
            kind.def_property_readonly(
                (std::string(field.name) + 's').c_str(),
                [&field](const OpKind& self) { return names_of(field.words, field.legal(self)); },
                ("Legal words of " + std::string(field.name) + '.').c_str());
}

// Tables live as long as the process: Python sees the rows themselves.
template <typename Rows>
py::tuple rows_of(const Rows& rows) {
    py::list out;
    for (const auto& row : rows) out.append(py::cast(&row, py::return_value_policy::reference));
    return py::tuple(out);
}

}  // namespace

void bind_op_kinds(py::module_& m) {
    bind_field(m);
    bind_op_kind(m);
    m.attr("OP_KINDS") = rows_of(kOpKinds);
    py::list problem_fields, config_fields;
    for (const Field& field : kProblemFields)
        problem_fields.append(py::cast(&field, py::return_value_policy::reference));
    for (const Field& field : kConfigFields) config_fields.append(py::cast(&field, py::return_value_policy::reference));
    m.attr("PROBLEM_FIELDS") = py::tuple(problem_fields);
    m.attr("HEAD_SIZES") = py::tuple(py::cast(Problem::kHeadSizes));
    m.attr("PAGE_SIZES") = py::tuple(py::cast(Problem::kPageSizes));
    m.attr("CONFIG_FIELDS") = py::tuple(config_fields);
    py::dict loop_knobs;
    for (const LoopKnob& knob : kLoopKnobs) loop_knobs[name_knob(knob)] = knob.word;
    m.attr("LOOP_KNOBS") = loop_knobs;
}

}  // namespace deep_gemm
