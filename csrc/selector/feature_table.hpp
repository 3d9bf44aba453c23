// The features of a few rows, feature by feature, so that one feature of all rows is compared in a few instructions.
// The vectors are of GCC and Clang, four numbers each, which every 64-bit host has.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace deep_gemm {

using FloatLanes = float __attribute__((vector_size(16)));
using BitLanes = uint32_t __attribute__((vector_size(16)));  // of each number all bits, or none, where it is a flag

class FeatureTable {
 public:
    static constexpr size_t kRows = 12;  // a shortlist
    static constexpr size_t kLanes = 4, kVectors = kRows / kLanes;
    using Bits = std::array<BitLanes, kVectors>;

    explicit FeatureTable(size_t num_features) : values_(num_features * kRows) {}

    size_t num_features() const { return values_.size() / kRows; }
    float& at(size_t feature, size_t row) { return values_[feature * kRows + row]; }
    float at(size_t feature, size_t row) const { return values_[feature * kRows + row]; }
    void fill(size_t feature, float value) { std::fill_n(&values_[feature * kRows], kRows, value); }

    FloatLanes load(size_t feature, size_t vector) const {
        FloatLanes lanes;
        std::memcpy(&lanes, &values_[feature * kRows + vector * kLanes], sizeof lanes);
        return lanes;
    }

 private:
    std::vector<float> values_;
};

inline FloatLanes broadcast(float value) { return FloatLanes{value, value, value, value}; }
inline BitLanes broadcast(uint32_t bits) { return BitLanes{bits, bits, bits, bits}; }

}  // namespace deep_gemm
