// The plain kernels of sums over groups: one for each type of D, with C and without.
#pragma once

#include <string>

#include "runtime/call.hpp"
#include "runtime/plain_kernel.hpp"

namespace deep_gemm {

// What a kernel of a sum is compiled for. BF16 takes no C.
struct SumVariant {
    bool is_float, has_c;
};

inline SumVariant sum_variant(const Call& call) { return {call.d.view.dtype == Dtype::kFloat32, call.c.is_present()}; }

// The kernels of one header of deep_gemm/include; as PlainKernel, make them once and keep them.
class SumKernels {
 public:
    // `more`: constants besides those of the variant, which stand first.
    explicit SumKernels(const std::string& name, const PlainConstants& more = {})
        : rounding_(name, constants(false, false, more)),
          plain_(name, constants(true, false, more)),
          adding_(name, constants(true, true, more)) {}

    PlainKernel& of(const SumVariant& variant) {
        return variant.has_c ? adding_ : variant.is_float ? plain_ : rounding_;
    }

 private:
    static PlainConstants constants(bool is_float, bool has_c, const PlainConstants& more) {
        PlainConstants all{{"kFloatD", is_float}, {"kHasC", has_c}};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }

    PlainKernel rounding_, plain_, adding_;
};

}  // namespace deep_gemm
