#include "runtime/policy.hpp"

#include <optional>
#include <string>

#include "core/error.hpp"
#include "core/problem.hpp"
#include "core/python.hpp"

namespace deep_gemm {
namespace {

int num_sms_limit = 0;
int mk_alignment = Problem::kDefaultAlignment;
bool is_pdl_enabled = false;
bool is_compile_mode = false;
double tc_util_ratio = 1.0;
std::optional<bool> batch_invariant;  // empty until it is set or first asked for

bool read_environment(const char* name) {
    const Reference is_enabled = import_attribute("deep_gemm.environment", "is_enabled");
    return Reference::take(PyObject_CallFunction(is_enabled.get(), "s", name)).get() == Py_True;
}

}  // namespace

int get_num_sms() { return num_sms_limit; }

void set_num_sms(int num_sms) {
    if (num_sms < 0 || num_sms > Problem::kMaxSms)
        throw Error(ErrorKind::kArgument, "num_sms = " + std::to_string(num_sms) + ": must be within 0.." +
                                              std::to_string(Problem::kMaxSms) + "; 0 means all SMs of the device.");
    num_sms_limit = num_sms;
}

int get_sm_limit(int sm_count) { return num_sms_limit < sm_count ? num_sms_limit : 0; }

int get_mk_alignment() { return mk_alignment; }

void set_mk_alignment(int alignment) {
    if (alignment < Problem::kAlignmentUnit || alignment > Problem::kMaxAlignment ||
        alignment % Problem::kAlignmentUnit != 0)
        throw Error(ErrorKind::kArgument,
                    "alignment = " + std::to_string(alignment) + ": must be a multiple of " +
                        std::to_string(Problem::kAlignmentUnit) + " within " + std::to_string(Problem::kAlignmentUnit) +
                        ".." + std::to_string(Problem::kMaxAlignment) + "; pass such a number, e.g. 128.");
    mk_alignment = alignment;
}

bool get_pdl() { return is_pdl_enabled; }

void set_pdl(bool is_enabled) { is_pdl_enabled = is_enabled; }

bool get_compile_mode() { return is_compile_mode; }

void set_compile_mode(bool is_enabled) { is_compile_mode = is_enabled; }

double get_tc_util() { return tc_util_ratio; }

void set_tc_util(double ratio) {
    if (!(ratio >= 0.0 && ratio <= 100.0))  // NaN, too
        throw Error(ErrorKind::kArgument, "ratio = " + std::to_string(ratio) +
                                              ": must be within 0..1, or a percentage up to 100; pass such a number.");
    tc_util_ratio = ratio > 1.0 ? ratio / 100.0 : ratio;
}

bool is_batch_invariant() {
    if (!batch_invariant) batch_invariant = read_environment("DG_BATCH_INVARIANT");
    return *batch_invariant;
}

void set_batch_invariant(bool is_enabled) { batch_invariant = is_enabled; }

}  // namespace deep_gemm
