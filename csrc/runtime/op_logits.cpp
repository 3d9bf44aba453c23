// The arguments of attention index logits.
#include <string>

#include "core/error.hpp"
#include "runtime/arguments.hpp"
#include "runtime/logits.hpp"
#include "runtime/operand_checks.hpp"
#include "runtime/run.hpp"
#include "runtime/torch_access.hpp"

namespace deep_gemm {
namespace {

// The repr of a tensor would read it.
std::string type_repr(PyObject* object) { return short_repr(reinterpret_cast<PyObject*>(Py_TYPE(object))); }

Dtype parse_logits_dtype(PyObject* object) {
    if (!is_given(object) || object == torch_access().float32) return Dtype::kFloat32;
    if (object == torch_access().bfloat16) return Dtype::kBfloat16;
    throw Error(ErrorKind::kDtype, "logits_dtype = " + short_repr(object) +
                                       ": must be torch.float32 or torch.bfloat16; pass one of them.");
}

// `object` is not null.
int64_t parse_columns(const char* name, PyObject* object) {
    const auto value = to_host_integer(object);
    if (!value || *value < 0 || *value > Problem::kMaxDim)
        throw Error(ErrorKind::kArgument, std::string(name) + " = " + short_repr(object) +
                                              ": must be an int within 0..2^31 - 1; pass the columns of the logits.");
    return *value;
}

// Queries, or a pair (queries, None): the scales of FP8 queries are part of the weights.
Reference take_queries(PyObject* object) {
    if (!PyTuple_Check(object) && !PyList_Check(object)) return Reference::borrow(object);
    const Reference pair = parse_pair("q", object);
    if (PyTuple_GET_ITEM(pair.get(), 1) != Py_None)
        throw Error(ErrorKind::kArgument,
                    "q[1] = " + type_repr(PyTuple_GET_ITEM(pair.get(), 1)) +
                        ": queries with scales are FP4, which is SM100 only; pass FP8 queries or (q, None), and "
                        "multiply the weights by the scales.");
    return Reference::borrow(PyTuple_GET_ITEM(pair.get(), 0));
}

// A call without pages has no schedule on SM90; newer versions of the API have the parameter.
void check_no_schedule(PyObject* object) {
    if (!is_given(object)) return;
    throw Error(ErrorKind::kArgument,
                "schedule_meta = " + type_repr(object) + ": without pages a schedule is SM100 only; pass None.");
}

// The sixth argument was clean_logits, a bool, and later became max_seqlen_k, an int.
void parse_options(const LogitsValues& values, bool is_paged, LogitsOperands& logits) {
    if (!is_paged) check_no_schedule(values.schedule);
    const bool is_length = !is_paged && is_given(values.is_clean) && to_host_integer(values.is_clean);
    if (is_length && is_given(values.columns) && parse_columns("max_seqlen_k", values.columns) > 0)
        throw Error(ErrorKind::kArgument, "clean_logits = " + short_repr(values.is_clean) +
                                              ": an int there is max_seqlen_k, which was given, too; pass it once.");
    if (!is_length) check_flag("clean_logits", values.is_clean);
    logits.is_clean = is_length || (values.is_clean == nullptr ? !is_paged : values.is_clean == Py_True);
    PyObject* columns = is_length ? values.is_clean : values.columns;
    if (is_paged || is_given(columns))
        logits.columns = parse_columns(is_paged ? "max_context_len" : "max_seqlen_k", columns);
    logits.is_compressed = !is_paged && logits.columns > 0;
    logits.dtype = parse_logits_dtype(values.dtype);
}

void read_ranges(const LogitsValues& values, bool is_paged, LogitsOperands& logits) {
    read_operand(is_paged ? "context_lens" : "cu_seq_len_k_start", values.first, logits.first);
    read_operand(is_paged ? "block_table" : "cu_seq_len_k_end", values.second, logits.second);
    if (!is_paged) return;
    read_operand("schedule_meta", values.schedule, logits.schedule);
    if (is_given(values.indices)) read_operand("indices", values.indices, logits.indices);
}

}  // namespace

Reference run_logits(const LogitsValues& values, Call& call) {
    const bool is_paged = op_kind(call.op).is_paged();
    LogitsOperands logits;
    call.logits = &logits;
    parse_options(values, is_paged, logits);
    const Reference q = take_queries(values.q);  // these keep the tensors alive
    const Reference kv = is_paged ? Reference::borrow(values.kv) : parse_pair("kv", values.kv);
    read_operand("q", q.get(), call.a);
    read_operand(is_paged ? "kv_cache" : "kv", is_paged ? kv.get() : PyTuple_GET_ITEM(kv.get(), 0), call.b);
    if (!is_paged) read_operand("scale_kv", PyTuple_GET_ITEM(kv.get(), 1), call.scale_b);
    read_operand("weights", values.weights, call.scale_a);
    read_ranges(values, is_paged, logits);
    run(call);
    return std::move(logits.result);
}

}  // namespace deep_gemm
