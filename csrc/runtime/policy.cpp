#include "runtime/policy.hpp"

#include <limits>
#include <optional>
#include <string>

#include "core/error.hpp"
#include "core/problem.hpp"
#include "core/python.hpp"
#include "runtime/gpu.hpp"

namespace deep_gemm {
namespace {

int num_sms_limit = 0;
int mk_alignment = Problem::kDefaultAlignment;
uint64_t version = 0;
bool is_pdl_enabled = true;
bool is_compile_mode = false;
double tc_util_ratio = 1.0;
std::optional<double> scale_copy_work;      // empty until it is set or first asked for
std::optional<Invariance> batch_invariant;  // empty until it is set or first asked for

// As DG_BATCH_INVARIANT says, where it is set.
Invariance read_invariance() {
    const Reference read = import_attribute("deep_gemm.environment", "read_switch");
    const Reference is_enabled = Reference::take(PyObject_CallFunction(read.get(), "s", "DG_BATCH_INVARIANT"));
    if (is_enabled.get() == Py_None) return kDefaultInvariance;
    return {is_enabled.get() == Py_True, is_enabled.get() == Py_True};
}

// H200, dense products: copying gains 0.4 to 1.6 us from 2.9e10 on and loses 0.6 at 1.9e10
// (benchmarks/scale_copies.py). Four masked groups of 256 rows, 2.25e10, take 9 us longer with row-major scales.
constexpr double kScaleCopyWork = 2.2e10;

// DG_COPY_SCALES=0 copies none.
double read_scale_copy_work() {
    const Reference read = import_attribute("deep_gemm.environment", "read_switch");
    const Reference is_enabled = Reference::take(PyObject_CallFunction(read.get(), "s", "DG_COPY_SCALES"));
    return is_enabled.get() == Py_False ? std::numeric_limits<double>::infinity() : kScaleCopyWork;
}

const Invariance& get_invariance() {
    if (!batch_invariant) batch_invariant = read_invariance();
    return *batch_invariant;
}

}  // namespace

uint64_t policy_version() { return version; }

int get_num_sms() {
    if (num_sms_limit > 0) return num_sms_limit;
    try {
        return get_gpu(current_ordinal()).device.sm_count;
    } catch (const Error&) {  // no driver, no GPU
        return 0;
    }
}

void set_num_sms(int num_sms) {
    if (num_sms < 0 || num_sms > Problem::kMaxSms)
        throw Error(ErrorKind::kArgument, "num_sms = " + std::to_string(num_sms) + ": must be within 0.." +
                                              std::to_string(Problem::kMaxSms) + "; 0 means all SMs of the device.");
    num_sms_limit = num_sms, ++version;
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

double get_scale_copy_work() {
    if (!scale_copy_work) scale_copy_work = read_scale_copy_work();
    return *scale_copy_work;
}

void set_scale_copy_work(double work) {
    if (!(work >= 0.0))  // NaN, too
        throw Error(ErrorKind::kArgument,
                    "work = " + std::to_string(work) + ": must be at least 0; pass m * n * k, or infinity for never.");
    scale_copy_work = work;
}

double get_tc_util() { return tc_util_ratio; }

void set_tc_util(double ratio) {
    if (!(ratio >= 0.0 && ratio <= 100.0))  // NaN, too
        throw Error(ErrorKind::kArgument, "ratio = " + std::to_string(ratio) +
                                              ": must be within 0..1, or a percentage up to 100; pass such a number.");
    tc_util_ratio = ratio > 1.0 ? ratio / 100.0 : ratio;
}

bool is_batch_invariant() { return get_batch_invariant().value_or(false); }

bool is_batch_invariant(const OpKind& kind) {
    if (kind.is_summed()) return is_batch_invariant();
    return kind.knobs.has(Knob::kSplitK) && (kind.is_fp8 ? get_invariance().fp8 : get_invariance().bf16);
}

std::optional<bool> get_batch_invariant() {
    const auto [bf16, fp8] = get_invariance();
    return bf16 == fp8 ? std::optional(bf16) : std::nullopt;
}

void set_batch_invariant(bool is_enabled) { batch_invariant = Invariance{is_enabled, is_enabled}, ++version; }

void reset_batch_invariant() { batch_invariant.reset(), ++version; }

}  // namespace deep_gemm
