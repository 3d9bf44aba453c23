#include "runtime/op.hpp"

#include <algorithm>
#include <array>
#include <memory>

#include "core/error.hpp"
#include "runtime/arguments.hpp"
#include "runtime/builtin.hpp"
#include "runtime/expression.hpp"
#include "runtime/family.hpp"
#include "runtime/logits.hpp"
#include "runtime/policy.hpp"
#include "runtime/run.hpp"
#include "runtime/signals.hpp"

namespace deep_gemm {
namespace {

// What a parameter is; its value lies in the slot of this number.
enum Role : uint8_t {
    kA,
    kB,
    kD,
    kC,
    kGroups,
    kKs,
    kExpectedM,
    kHeadSplits,
    kRecipe,
    kRecipeA,
    kRecipeB,
    kCompiledDims,
    kDisableUe8m0Cast,
    kAlpha,
    kBeta,
    kStream,
    kUsePsumLayout,
    kEnsureZeroPadding,
    kExpectedMForPsumLayout,
    kExpression,
    kUseVendor,
    kQueries,
    kKeys,
    kWeights,
    kFirst,
    kSecond,
    kSchedule,
    kIndices,
    kColumns,
    kCleanLogits,
    kLogitsDtype,
    kEpilogue,
    kEnableOverlap,
    kMaxBlockN,
    kSignal,
    kNumRoles
};

struct NamedRole {
    const char* name;
    Role role;
};

constexpr NamedRole kRoles[] = {{"a", kA},
                                {"b", kB},
                                {"d", kD},
                                {"c", kC},
                                {"m_indices", kGroups},
                                {"masked_m", kGroups},
                                {"ks_tensor", kGroups},
                                {"ks", kKs},
                                {"expected_m", kExpectedM},
                                {"head_splits", kHeadSplits},
                                {"recipe", kRecipe},
                                {"recipe_a", kRecipeA},
                                {"recipe_b", kRecipeB},
                                {"compiled_dims", kCompiledDims},
                                {"disable_ue8m0_cast", kDisableUe8m0Cast},
                                {"alpha", kAlpha},
                                {"beta", kBeta},
                                {"stream", kStream},
                                {"use_psum_layout", kUsePsumLayout},
                                {"ensure_zero_padding", kEnsureZeroPadding},
                                {"expected_m_for_psum_layout", kExpectedMForPsumLayout},
                                {"expr", kExpression},
                                {"use_cublaslt", kUseVendor},
                                {"q", kQueries},
                                {"kv", kKeys},
                                {"kv_cache", kKeys},
                                {"weights", kWeights},
                                {"cu_seq_len_k_start", kFirst},
                                {"cu_seq_len_k_end", kSecond},
                                {"context_lens", kFirst},
                                {"block_table", kSecond},
                                {"schedule_meta", kSchedule},
                                {"indices", kIndices},
                                {"max_seqlen_k", kColumns},
                                {"max_context_len", kColumns},
                                {"clean_logits", kCleanLogits},
                                {"logits_dtype", kLogitsDtype},
                                {"epilogue", kEpilogue},
                                {"enable_overlap", kEnableOverlap},
                                {"max_block_n", kMaxBlockN},
                                {"signal", kSignal}};

using Slots = std::array<PyObject*, kNumRoles>;  // borrowed; null: not given

struct Parameter {
    NamedRole known;
    PyObject *name, *alias;  // interned str; the alias may be null
};

struct PublicOp {
    OpText text;
    bool is_a_transposed, is_b_transposed;
    std::optional<Op> with_ends;  // the op kind of a call with use_psum_layout
    std::vector<Parameter> parameters{};
    const char* groups_name = nullptr;
    bool are_groups_required = false;
    PyMethodDef method{};
};

// The values of a call, all borrowed.
struct PythonCall {
    PyObject* const* values;
    Py_ssize_t num_positional;
    PyObject* keyword_names;
};

[[noreturn]] void fail(const PublicOp& op, const std::string& rest) {
    throw Error(ErrorKind::kArgument, op.text.name + "(): " + rest);
}

[[noreturn]] void fail_twice(const PublicOp& op, const Parameter& parameter) {
    const std::string alias =
        parameter.alias == nullptr ? "" : ", which is also called '" + utf8_of(parameter.alias) + "',";
    fail(op, std::string("argument '") + parameter.known.name + "'" + alias + " was given twice; give it once.");
}

bool is_name(const Parameter& parameter, PyObject* keyword) {
    if (PyUnicode_Compare(parameter.name, keyword) == 0) return true;
    return parameter.alias != nullptr && PyUnicode_Compare(parameter.alias, keyword) == 0;
}

// Keywords in source code are interned, so that their addresses nearly always tell.
const Parameter& find_parameter(const PublicOp& op, PyObject* keyword) {
    for (const Parameter& parameter : op.parameters)
        if (parameter.name == keyword || parameter.alias == keyword) return parameter;
    for (const Parameter& parameter : op.parameters)
        if (is_name(parameter, keyword)) return parameter;
    fail(op, "unknown argument " + short_repr(keyword) + "; see help(deep_gemm." + op.text.name + ").");
}

void bind_keywords(const PublicOp& op, const PythonCall& call, Slots& slots) {
    PyObject* const* values = call.values + call.num_positional;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(call.keyword_names); ++i) {
        const Parameter& parameter = find_parameter(op, PyTuple_GET_ITEM(call.keyword_names, i));
        PyObject*& slot = slots[parameter.known.role];
        if (slot != nullptr) fail_twice(op, parameter);
        slot = values[i];
    }
}

// Put each argument into the slot of its role. Throws Error(kArgument): unknown, missing or given twice.
void bind_arguments(const PublicOp& op, const PythonCall& call, Slots& slots) {
    const size_t given = size_t(call.num_positional);
    if (given > op.text.num_positional)
        fail(op, std::to_string(given) + " positional arguments: takes at most " +
                     std::to_string(op.text.num_positional) + "; name the others.");
    for (size_t i = 0; i < given; ++i) slots[op.parameters[i].known.role] = call.values[i];
    if (call.keyword_names != nullptr) bind_keywords(op, call, slots);
    for (size_t i = given; i < op.text.num_required; ++i)
        if (slots[op.parameters[i].known.role] == nullptr)
            fail(op, std::string("argument '") + op.parameters[i].known.name + "' is missing; give it.");
}

void read_input(const char* name, PyObject* object, bool is_transposed, Operand& operand) {
    read_operand(name, object, operand);
    if (is_transposed) transpose(operand);
}

bool parse_switch(const char* name, PyObject* object) { return object != nullptr && parse_flag(name, object); }

void set_expected_rows(int64_t rows, Call& call) {
    if (grouping_of(call.op) == Grouping::kMPsum && rows > 0) call.expected_m = rows;
}

void parse_options(const Slots& slots, Call& call) {
    if (is_given(slots[kEpilogue])) check_epilogue(slots[kEpilogue]);
    check_flag("disable_ue8m0_cast", slots[kDisableUe8m0Cast]);
    if (is_given(slots[kAlpha])) call.alpha = parse_factor("alpha", slots[kAlpha]);
    call.beta = parse_factor("beta", slots[kBeta]);
    call.compiled_dims = parse_compiled_dims_argument(slots[kCompiledDims]);
    call.stream = slots[kStream];
    if (slots[kHeadSplits] != nullptr) call.heads = parse_head_splits(slots[kHeadSplits]);
    if (slots[kExpectedM] != nullptr) call.expected_m = parse_expected_m(slots[kExpectedM]);
    if (is_given(slots[kKs]) || (slots[kKs] != nullptr && !op_kind(call.op).has_ends()))
        call.ks = parse_group_sizes(slots[kKs]);
    // Where the device says where groups end, no entries are as good as none.
    if (call.ks && call.ks->empty() && op_kind(call.op).has_ends()) call.ks.reset();
    call.ensures_zero_padding = parse_switch("ensure_zero_padding", slots[kEnsureZeroPadding]);
    if (is_given(slots[kExpectedMForPsumLayout]))
        set_expected_rows(parse_expected_m(slots[kExpectedMForPsumLayout], "expected_m_for_psum_layout"), call);
    // As groups that fill the alignment: small tiles of padding take longer than they save (H200, 32 groups of 8 rows,
    // 7168 x 2048: 195 us, not 141).
    if (call.ensures_zero_padding) set_expected_rows(call.alignment, call);
    if (slots[kUseVendor] != nullptr) call.use_vendor = parse_flag("use_cublaslt", slots[kUseVendor]);
}

void run_arranged(const Slots& slots, Call& call) {
    if (slots[kExpression] != nullptr) arrange(parse_expression(slots[kExpression], is_fp8(call.op)), call);
    run(call);
}

void read_outputs(const PublicOp& op, const Slots& slots, Call& call) {
    read_output("d", slots[kD], call.d);
    if (slots[kC] == slots[kD])
        call.c = {"c", slots[kC], call.d.view, false};  // D is not read twice
    else if (is_given(slots[kC]))
        read_operand("c", slots[kC], call.c);
    if (op.are_groups_required || is_given(slots[kGroups])) read_operand(op.groups_name, slots[kGroups], call.groups);
    if (parse_overlap({slots[kEnableOverlap], slots[kMaxBlockN], slots[kSignal]}))
        read_operand("signal", slots[kSignal], call.signal);
}

void run_bf16(const PublicOp& op, const Slots& slots, Call& call) {
    parse_options(slots, call);
    read_input("a", slots[kA], op.is_a_transposed, call.a);
    read_input("b", slots[kB], op.is_b_transposed, call.b);
    read_outputs(op, slots, call);
    run_arranged(slots, call);
}

void run_fp8(const PublicOp& op, const Slots& slots, Call& call) {
    const Reference a = parse_pair("a", slots[kA]), b = parse_pair("b", slots[kB]);  // keep the tensors alive
    const std::optional<Recipe> recipe = parse_recipes({slots[kRecipe], slots[kRecipeA], slots[kRecipeB]});
    parse_options(slots, call);
    read_input("a", PyTuple_GET_ITEM(a.get(), 0), op.is_a_transposed, call.a);
    read_input("scale_a", PyTuple_GET_ITEM(a.get(), 1), op.is_a_transposed, call.scale_a);
    read_input("b", PyTuple_GET_ITEM(b.get(), 0), op.is_b_transposed, call.b);
    read_input("scale_b", PyTuple_GET_ITEM(b.get(), 1), op.is_b_transposed, call.scale_b);
    read_outputs(op, slots, call);
    call.recipe = family_of(call.op).choose_recipe(recipe, call);
    run_arranged(slots, call);
}

// Returns what the op returns.
Reference run_op(const PublicOp& op, const PythonCall& python) {
    Slots slots{};
    bind_arguments(op, python, slots);
    const bool has_ends = parse_switch("use_psum_layout", slots[kUsePsumLayout]);
    Call call = make_call(has_ends ? *op.with_ends : op.text.op);
    if (op_kind(call.op).is_logits()) {
        call.stream = slots[kStream];
        return run_logits(
            {slots[kQueries], slots[kKeys], slots[kWeights], slots[kFirst], slots[kSecond], slots[kSchedule],
             slots[kIndices], slots[kColumns], slots[kCleanLogits], slots[kLogitsDtype]},
            call);
    }
    call.group_layout = op.text.group_layout;
    is_fp8(call.op) ? run_fp8(op, slots, call) : run_bf16(op, slots, call);
    if (!call.signal.is_present()) [[likely]]
        return Reference::borrow(Py_None);
    return Reference::take(Py_BuildValue("(LL)", static_cast<long long>(kSignalRows),
                                         static_cast<long long>(signal_threshold(call.b.view.shape[1]))));
}

// Put the call into the graph that torch is recording, in place of running it.
PyObject* record_call(const PublicOp& op, const PythonCall& call) {
    const Reference get_recorder = import_attribute("deep_gemm.tracing", "get_recorder");
    const Reference recorder = Reference::take(PyObject_CallFunction(get_recorder.get(), "s", op.text.name.c_str()));
    return PyObject_Vectorcall(recorder.get(), call.values, size_t(call.num_positional), call.keyword_names);
}

PyObject* run_or_record(const PublicOp& op, const PythonCall& call) {
    try {
        return run_op(op, call).release();
    } catch (const RecordedCall&) {
        return record_call(op, call);
    }
}

PyObject* call_op(PyObject* self, PyObject* const* values, Py_ssize_t num_positional, PyObject* keyword_names) {
    return call_guarded(
        [&] { return run_or_record(state_of<PublicOp>(self), {values, num_positional, keyword_names}); });
}

PyObject* intern(const std::string& text) {
    return Reference::take(PyUnicode_InternFromString(text.c_str())).release();
}

Parameter make_parameter(const OpText& op, const ParameterText& text) {
    for (const NamedRole& known : kRoles)
        if (text.name == known.name)
            return {known, intern(text.name), text.alias.empty() ? nullptr : intern(text.alias)};
    throw Error(ErrorKind::kArgument,
                op.name + ": no op has a parameter '" + text.name + "'; add its role to csrc/runtime/op.cpp.");
}

// What a call reads without asking whether it is there.
std::vector<Role> required_roles(const OpKind& kind) {
    if (kind.is_paged()) return {kQueries, kKeys, kWeights, kFirst, kSecond, kSchedule, kColumns};
    if (kind.is_logits()) return {kQueries, kKeys, kWeights, kFirst, kSecond};
    if (!kind.reads_groups()) return {kA, kB, kD};
    return {kA, kB, kD, kind.k_is_divided() ? kKs : kGroups};
}

void check_parameters(const PublicOp& op) {
    std::array<int, kNumRoles> counts{};
    std::array<bool, kNumRoles> is_required{};
    for (size_t i = 0; i < op.parameters.size(); ++i) {
        const Role role = op.parameters[i].known.role;
        ++counts[role];
        is_required[role] = i < op.text.num_required;
    }
    const OpKind& kind = op_kind(op.text.op);
    bool is_right = true;
    for (Role role : required_roles(kind)) is_right = is_right && is_required[role];
    for (int count : counts) is_right = is_right && count <= 1;
    is_right = is_right && (counts[kUsePsumLayout] == 0 || op.with_ends);
    if (!is_right)
        throw Error(ErrorKind::kArgument, op.text.name +
                                              ": must require a, b, d and the groups' parameter, or the operands of "
                                              "logits, have each parameter once, and use_psum_layout only where an op "
                                              "kind has ends; mend the row of deep_gemm.ops.");
}

std::unique_ptr<PublicOp> make_public_op(const OpText& text) {
    if (text.layout != "nt" && text.layout != "nn" && text.layout != "tn" && text.layout != "tt")
        throw Error(ErrorKind::kArgument, "layout = " + text.layout + ": must be nt, nn, tn or tt; pass one of them.");
    auto op = std::make_unique<PublicOp>(PublicOp{.text = text,
                                                  .is_a_transposed = text.layout[0] == 't',
                                                  .is_b_transposed = text.layout[1] == 'n',
                                                  .with_ends = with_ends(text.op)});
    for (const ParameterText& parameter : text.parameters) {
        op->parameters.push_back(make_parameter(text, parameter));
        if (op->parameters.back().known.role != kGroups) continue;
        op->groups_name = op->parameters.back().known.name;
        op->are_groups_required = op->parameters.size() <= text.num_required;
    }
    check_parameters(*op);
    op->method = {op->text.name.c_str(), as_method(&call_op), METH_FASTCALL | METH_KEYWORDS,
                  op->text.documentation.c_str()};
    return op;
}

}  // namespace

Reference make_op(const OpText& text, PyObject* module) { return make_builtin(make_public_op(text), module); }

Call make_call(Op op) {
    Call call{.op = op};
    if (op_kind(op).m_is_shared()) call.alignment = get_mk_alignment();
    return call;
}

}  // namespace deep_gemm
