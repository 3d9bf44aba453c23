#include "core/problem.hpp"

#include <stdexcept>

#include "core/error.hpp"

namespace deep_gemm {

const std::array<IntegerField, 4> kProblemFields = {{
    {"m", 1, Problem::kMaxDim, 0, true},
    {"n", 1, Problem::kMaxDim, 0, true},
    {"k", 1, Problem::kMaxDim, 0, true},
    {"num_sms", 0, Problem::kMaxSms, 0, false},
}};

namespace {

constexpr JsonLimits kLimits = {4096, 4, false};
constexpr std::string_view kDimNames = "mnk";

// Members in ascending order of their names, as canonical JSON wants them; `first` tells whether a comma is needed.
void append_member(std::string& out, std::string_view name, const std::string& value, bool& first) {
    if (!first) out += ',';
    first = false;
    out += '"';
    out += name;
    out += "\":";
    out += value;
}

std::string fields_json(const Problem& problem) {
    std::string out = "{";
    bool first = true;
    if (problem.compiled_dims != 0) append_member(out, "compiled_dims", '"' + compiled_dims_text(problem.compiled_dims) + '"', first);
    append_member(out, "k", std::to_string(problem.k), first);
    append_member(out, "m", std::to_string(problem.m), first);
    append_member(out, "n", std::to_string(problem.n), first);
    if (problem.num_sms != 0) append_member(out, "num_sms", std::to_string(problem.num_sms), first);
    return out + '}';
}

void set_field(Problem& problem, size_t index, int64_t value) {
    switch (index) {
        case 0: problem.m = value; break;
        case 1: problem.n = value; break;
        case 2: problem.k = value; break;
        default: problem.num_sms = int32_t(value);
    }
}

const JsonValue& require(const JsonValue& object, const char* name, JsonValue::Type type, const char* type_name) {
    const JsonValue* value = object.type == JsonValue::Type::kObject ? object.find(name) : nullptr;
    if (value == nullptr || value->type != type) throw std::invalid_argument(std::string(name) + ": must be given and be " + type_name);
    return *value;
}

void check_members(const JsonValue& fields) {
    for (const auto& [name, value] : fields.object) {
        bool known = name == "compiled_dims";
        for (const IntegerField& field : kProblemFields) known = known || name == field.name;
        if (!known) throw std::invalid_argument("field " + name + " is unknown; a problem has m, n, k, num_sms and compiled_dims");
    }
}

Problem parse_problem(std::string_view text) {
    const JsonValue root = parse_json(text, kLimits);
    Problem problem;
    problem.op = parse_op(require(root, "op", JsonValue::Type::kString, "a string").string);
    const JsonValue& fields = require(root, "fields", JsonValue::Type::kObject, "an object");
    if (root.object.size() != 2) throw std::invalid_argument("a problem has the members fields and op only");
    check_members(fields);
    for (size_t i = 0; i < kProblemFields.size(); ++i) {
        const JsonValue* value = fields.find(kProblemFields[i].name);
        if (value == nullptr && kProblemFields[i].is_required)
            throw std::invalid_argument(std::string(kProblemFields[i].name) + " is missing");
        if (value != nullptr) set_field(problem, i, check_integer_field(kProblemFields[i], *value));
    }
    if (fields.find("compiled_dims") != nullptr)
        problem.compiled_dims = parse_compiled_dims(require(fields, "compiled_dims", JsonValue::Type::kString, "a string").string);
    return problem;
}

}  // namespace

std::string_view op_name(Op) { return "fp8_gemm"; }

Op parse_op(std::string_view name) {
    if (name != "fp8_gemm") throw Error(ErrorKind::kProblem, "op = '" + std::string(name) + "': no such op kind; use 'fp8_gemm'");
    return Op::kFp8Gemm;
}

void check_integer_range(const IntegerField& field, int64_t value) {
    if (value >= field.minimum && value <= field.maximum) return;
    throw std::invalid_argument(std::string(field.name) + " = " + std::to_string(value) + ": must be within " +
                                std::to_string(field.minimum) + ".." + std::to_string(field.maximum) + "; pass a size in this range");
}

int64_t check_integer_field(const IntegerField& field, const JsonValue& value) {
    if (value.type != JsonValue::Type::kInt)
        throw std::invalid_argument(std::string(field.name) + ": must be an integer; write it as plain digits");
    check_integer_range(field, value.integer);
    return value.integer;
}

void check_problem(const Problem& problem) {
    const int64_t values[] = {problem.m, problem.n, problem.k, problem.num_sms};
    try {
        for (size_t i = 0; i < kProblemFields.size(); ++i) check_integer_range(kProblemFields[i], values[i]);
    } catch (const std::invalid_argument& error) {
        throw Error(ErrorKind::kProblem, error.what());
    }
}

uint8_t parse_compiled_dims(std::string_view text) {
    uint8_t bits = 0;
    int previous = -1;
    for (char c : text) {
        const int index = int(kDimNames.find(c));
        if (index <= previous)
            throw Error(ErrorKind::kProblem, "compiled_dims = '" + std::string(text.substr(0, 32)) +
                                                 "': must be a subset of 'mnk' in this order; for example 'nk'");
        previous = index;
        bits |= uint8_t(1 << index);
    }
    return bits;
}

std::string compiled_dims_text(uint8_t bits) {
    std::string text;
    for (size_t i = 0; i < kDimNames.size(); ++i)
        if (bits >> i & 1) text += kDimNames[i];
    return text;
}

std::string to_json(const Problem& problem) {
    return "{\"fields\":" + fields_json(problem) + ",\"op\":\"" + std::string(op_name(problem.op)) + "\"}";
}

Problem problem_from_json(std::string_view text) {
    try {
        return parse_problem(text);
    } catch (const std::invalid_argument& error) {
        throw Error(ErrorKind::kProblem, error.what());
    }
}

Sha256Digest problem_digest(const Problem& problem) {
    const std::string text = to_json(problem);
    return sha256(text.data(), text.size());
}

// Multiplication by odd constants spreads small sizes over all bits; the table that uses it needs no more.
size_t hash_value(const Problem& problem) {
    uint64_t hash = uint64_t(problem.op) + 1;
    for (uint64_t value :
         {uint64_t(problem.m), uint64_t(problem.n), uint64_t(problem.k), uint64_t(problem.num_sms), uint64_t(problem.compiled_dims)}) {
        hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 29;
    }
    return size_t(hash);
}

std::string to_string(const Problem& problem) {
    std::string text = std::string(op_name(problem.op)) + " m=" + std::to_string(problem.m) + " n=" + std::to_string(problem.n) +
                       " k=" + std::to_string(problem.k);
    if (problem.num_sms != 0) text += " num_sms=" + std::to_string(problem.num_sms);
    if (problem.compiled_dims != 0) text += " compiled_dims=" + compiled_dims_text(problem.compiled_dims);
    return text;
}

}  // namespace deep_gemm
