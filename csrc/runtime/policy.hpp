// How this process runs its calls, whatever the problem: set by functions of the package, read by every call. The GIL
// must be held.
#pragma once

#include <cstdint>
#include <optional>

#include "core/op_kind.hpp"

namespace deep_gemm {

// Another number after each change of what planned calls read: the limit of SMs and batch invariance.
uint64_t policy_version();

// What callers get that ask for nothing. BF16 callers take for granted that a row of D does not depend on m, and a
// difference that nobody sees is worse than a slower product of few columns; docs/performance.md has what it costs.
struct Invariance {
    bool bf16, fp8;
};
inline constexpr Invariance kDefaultInvariance{.bf16 = true, .fp8 = false};
static_assert(kDefaultInvariance.bf16 != kDefaultInvariance.fp8, "what tells the default from what a caller set");

// SMs that launches may use, as callers see it: the limit that was set last, or else the SMs of the current GPU; 0
// where there is none.
int get_num_sms();
void set_num_sms(int num_sms);  // 0 = all of the device. Throws Error(kArgument).

// The same for a device of `sm_count` SMs: 0 also where the limit is no smaller than that.
int get_sm_limit(int sm_count);

// In m-grouped contiguous products, the rows of every group start at a multiple of it. Throws Error(kArgument).
int get_mk_alignment();
void set_mk_alignment(int alignment);

// Whether a kernel may start while the one before it in the stream ends (programmatic dependent launch); at first, yes.
bool get_pdl();
void set_pdl(bool is_enabled);

// Whether calls check, choose, compile and load, and then return without running anything.
bool get_compile_mode();
void set_compile_mode(bool is_enabled);

// Share of the tensor cores' time that the caller wants used, within 0..1. It is kept for callers of the API; nothing
// reads it. Throws Error(kArgument); numbers above 1 are percent.
double get_tc_util();
void set_tc_util(double ratio);

// m * n * k of a product from which row-major scales are copied before it is run (scale_copy.hpp); m of masked groups
// are the expected rows of all. At first 2.2e10; DG_COPY_SCALES=0 makes it infinity.
double get_scale_copy_work();
void set_scale_copy_work(double work);  // Throws Error(kArgument) for a negative number or NaN.

// Whether selection is limited to configs with which a row of D does not depend on m: for all op kinds, or for problems
// of this one. Of kinds that cannot split K all configs are such, so their problems ask for nothing; but sums over
// groups are added up in parts whose number then depends on neither m nor n, where both types are invariant.
// DG_BATCH_INVARIANT decides until it is set; without it, kDefaultInvariance. reset_batch_invariant goes back to that.
bool is_batch_invariant();
bool is_batch_invariant(const OpKind& kind);
// What holds for both types alike; empty where the default does, in which they differ.
std::optional<bool> get_batch_invariant();
void set_batch_invariant(bool is_enabled);
void reset_batch_invariant();

}  // namespace deep_gemm
