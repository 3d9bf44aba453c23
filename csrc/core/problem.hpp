// What the host knows when an op is called. Immutable once made; its key is frozen: sha256 of the canonical JSON
// {"fields":{...},"op":"..."} in which fields at their default are left out, so that a new field keeps all old keys.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/json.hpp"
#include "core/sha256.hpp"

namespace deep_gemm {

enum class Op : uint8_t { kFp8Gemm };

std::string_view op_name(Op op);
Op parse_op(std::string_view name);  // throws Error(kProblem)

// A description of one integer field; `is_required` fields have no default and always enter the key.
struct IntegerField {
    const char* name;
    int64_t minimum, maximum, default_value;
    bool is_required;
};

struct Problem {
    static constexpr int64_t kMaxDim = (int64_t(1) << 31) - 1;  // tensor-map coordinates are signed 32-bit numbers
    static constexpr int64_t kMaxSms = 65535;
    enum : uint8_t { kCompileM = 1, kCompileN = 2, kCompileK = 4 };

    Op op = Op::kFp8Gemm;
    int64_t m = 1, n = 1, k = 1;
    int32_t num_sms = 0;        // SMs to use; 0 = all of the device
    uint8_t compiled_dims = 0;  // dims that are constants of the kernel: bits kCompileM, kCompileN, kCompileK

    bool operator==(const Problem&) const = default;
};

// m, n, k, num_sms in the order of Problem.
extern const std::array<IntegerField, 4> kProblemFields;

// Check every field of `problem`; throws Error(kProblem) that names the first bad one.
void check_problem(const Problem& problem);

// A subset of "mnk" in this order (e.g. "nk") to bits and back; throws Error(kProblem).
uint8_t parse_compiled_dims(std::string_view text);
std::string compiled_dims_text(uint8_t bits);

std::string to_json(const Problem& problem);
Problem problem_from_json(std::string_view text);  // throws Error(kProblem)
Sha256Digest problem_digest(const Problem& problem);
size_t hash_value(const Problem& problem);
std::string to_string(const Problem& problem);

// `value` if it is an integer within the field's range; throws std::invalid_argument with the field, its value and rule.
int64_t check_integer_field(const IntegerField& field, const JsonValue& value);
void check_integer_range(const IntegerField& field, int64_t value);

}  // namespace deep_gemm
