// The features of a few rows, feature by feature, so that one feature of all rows is compared in a few instructions.
// The vectors are of GCC and Clang.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace deep_gemm {

// Vectors of so many numbers; every 64-bit host has those of four. Written out, because GCC drops a size that depends
// on a template's argument. Flags are all bits of a number or none.
template <size_t kLanes>
struct Lanes;
template <>
struct Lanes<4> {
    using Floats = float __attribute__((vector_size(16)));
    using Bits = uint32_t __attribute__((vector_size(16)));
};
template <>
struct Lanes<8> {
    using Floats = float __attribute__((vector_size(32)));
    using Bits = uint32_t __attribute__((vector_size(32)));
};
template <>
struct Lanes<16> {
    using Floats = float __attribute__((vector_size(64)));
    using Bits = uint32_t __attribute__((vector_size(64)));
};

class FeatureTable {
 public:
    static constexpr size_t kRows = 12;              // a shortlist
    static constexpr size_t kMostLanes = 16;         // of a vector; rows beyond kRows are zeros
    using Flags = std::array<uint32_t, kMostLanes>;  // of the rows

    explicit FeatureTable(size_t num_features) : columns_(num_features) {}

    size_t num_features() const { return columns_.size(); }
    float& at(size_t feature, size_t row) { return columns_[feature].rows[row]; }
    float at(size_t feature, size_t row) const { return columns_[feature].rows[row]; }
    void fill(size_t feature, float value) { std::fill_n(columns_[feature].rows, kRows, value); }

    // Calls use(values, flags) for each vector of rows of a feature; it may change their flags.
    template <size_t kLanes, typename Use>
    __attribute__((always_inline)) void visit(size_t feature, typename Lanes<kLanes>::Bits* flags, Use&& use) const {
        const auto visit_one = [&](size_t i) __attribute__((always_inline)) {
            typename Lanes<kLanes>::Floats values;
            std::memcpy(&values, &columns_[feature].rows[i * kLanes], sizeof values);
            use(values, flags[i]);
        };
        [&]<size_t... i>(std::index_sequence<i...>)
            __attribute__((always_inline)) { (visit_one(i), ...); }(std::make_index_sequence<count_vectors(kLanes)>());
    }
    static constexpr size_t count_vectors(size_t lanes) { return (kRows + lanes - 1) / lanes; }

 private:
    struct alignas(kMostLanes * sizeof(float)) Column {
        float rows[kMostLanes] = {};
    };
    std::vector<Column> columns_;
};

}  // namespace deep_gemm
