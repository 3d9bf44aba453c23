// What tells the calls of a planned call apart (planned_call.cpp): everything that a plan may depend on.
#pragma once

#include <Python.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/tensor_view.hpp"

namespace deep_gemm {

inline constexpr size_t kMaxArguments = 8;  // of a planned call

// Words that describe the arguments in order. Equal keys: tensors of the same GPU, dtype, shape, strides and alignment
// to 16 bytes; equal options.
class CallKey {
 public:
    CallKey() : size_(0) {}
    CallKey(const CallKey& other) : size_(other.size_) { *this = other; }
    CallKey& operator=(const CallKey& other);

    void add(int64_t word) { words_[size_++] = word; }
    void add_tensor(const TensorView& view);  // of at most kMaxRank dims

    // Add None, a bool, an int, a tuple of at most three ints, or a string. Returns false for any other object, and for
    // numbers beyond 64 bits.
    bool add_option(PyObject* object);

    bool operator==(const CallKey& other) const;
    size_t hash() const;

 private:
    static constexpr size_t kMaxWords = 1 + kMaxArguments * (1 + 2 * kMaxRank);

    size_t size_;
    std::array<int64_t, kMaxWords> words_;  // the first size_ of them
};

struct CallKeyHash {
    size_t operator()(const CallKey& key) const { return key.hash(); }
};

}  // namespace deep_gemm
