// The features of a few rows, feature by feature, so that one feature of all rows is compared in a few instructions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace deep_gemm {

class FeatureTable {
 public:
    static constexpr size_t kRows = 12;       // a shortlist
    static constexpr size_t kMostLanes = 16;  // of a vector of any host

    explicit FeatureTable(size_t num_features) : columns_(num_features) {}

    size_t num_features() const { return columns_.size(); }
    // The features of a row lie kMostLanes numbers apart.
    float& at(size_t feature, size_t row) { return columns_[feature].rows[row]; }
    float at(size_t feature, size_t row) const { return columns_[feature].rows[row]; }
    void fill(size_t feature, float value) { std::fill_n(columns_[feature].rows, kRows, value); }

    // A feature of all rows; behind them zeros, up to kMostLanes numbers.
    const float* rows(size_t feature) const { return columns_[feature].rows; }

 private:
    struct alignas(kMostLanes * sizeof(float)) Column {
        float rows[kMostLanes] = {};
    };
    std::vector<Column> columns_;
};

}  // namespace deep_gemm
