#include "core/problem.hpp"

#include <iterator>
#include <map>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "core/error.hpp"

namespace deep_gemm {

const std::array<IntegerField, 7> kProblemFields = {{
    {"m", 1, Problem::kMaxDim, 0, true},
    {"n", 1, Problem::kMaxDim, 0, true},
    {"k", 1, Problem::kMaxDim, 0, true},
    {"num_sms", 0, Problem::kMaxSms, 0, false},
    {"num_groups", 0, Problem::kMaxGroups, 0, false},
    {"expected_m", 0, Problem::kMaxDim, 0, false},
    {"alignment", Problem::kAlignmentUnit, Problem::kMaxAlignment, Problem::kDefaultAlignment, false},
}};

namespace {

constexpr const char* kRecipeNames[] = {"1d2d", "1d1d", "per_row"};
constexpr const char* kDDtypeNames[] = {"bf16", "fp32"};
constexpr const char* kCModeNames[] = {"none", "accumulate", "general", "head_split"};
constexpr const char* kMajorNames[] = {"k", "mn"};
constexpr const char* kScaleLayoutNames[] = {"mn_major", "any"};
constexpr const char* kGroupLayoutNames[] = {"joint", "blocks"};
// In the order of kOps.
constexpr const char* kOpNames[] = {"fp8_gemm",
                                    "bf16_gemm",
                                    "m_grouped_fp8_gemm_contiguous",
                                    "m_grouped_bf16_gemm_contiguous",
                                    "m_grouped_fp8_gemm_masked",
                                    "m_grouped_bf16_gemm_masked",
                                    "k_grouped_fp8_gemm_contiguous",
                                    "k_grouped_bf16_gemm_contiguous"};
static_assert(std::size(kOpNames) == kNumOps);

template <auto member>
constexpr EnumField make_enum_field(const char* name, std::span<const char* const> names) {
    using Enum = std::remove_cvref_t<decltype(std::declval<Problem>().*member)>;
    return {name, names, [](const Problem& problem) { return uint8_t(problem.*member); },
            [](Problem& problem, uint8_t value) { problem.*member = Enum(value); }};
}

}  // namespace

const std::array<EnumField, 7> kProblemEnums = {{
    make_enum_field<&Problem::recipe>("recipe", kRecipeNames),
    make_enum_field<&Problem::d_dtype>("d_dtype", kDDtypeNames),
    make_enum_field<&Problem::c_mode>("c_mode", kCModeNames),
    make_enum_field<&Problem::a_major>("a_major", kMajorNames),
    make_enum_field<&Problem::b_major>("b_major", kMajorNames),
    make_enum_field<&Problem::scale_layout>("scale_layout", kScaleLayoutNames),
    make_enum_field<&Problem::group_layout>("group_layout", kGroupLayoutNames),
}};

namespace {

constexpr JsonLimits kLimits = {4096, 4, false};
constexpr std::string_view kDimNames = "mnk";

// Members by name, which a map sorts as canonical JSON wants them; fields at their default are left out.
std::string fields_json(const Problem& problem) {
    std::map<std::string_view, std::string> members;
    for (size_t i = 0; i < kProblemFields.size(); ++i)
        if (kProblemFields[i].is_required || get_field(problem, i) != kProblemFields[i].default_value)
            members[kProblemFields[i].name] = std::to_string(get_field(problem, i));
    if (problem.compiled_dims != 0) members["compiled_dims"] = '"' + compiled_dims_text(problem.compiled_dims) + '"';
    if (problem.batch_invariant) members["batch_invariant"] = "true";
    for (const EnumField& field : kProblemEnums)
        if (field.get(problem) != 0) members[field.name] = std::string("\"") + enum_name(field, problem) + '"';
    std::string out = "{";
    for (const auto& [name, value] : members)
        out += (out.size() == 1 ? "\"" : ",\"") + std::string(name) + "\":" + value;
    return out + '}';
}

const JsonValue& require(const JsonValue& object, const char* name, JsonValue::Type type, const char* type_name) {
    const JsonValue* value = object.type == JsonValue::Type::kObject ? object.find(name) : nullptr;
    if (value == nullptr || value->type != type)
        throw std::invalid_argument(std::string(name) + ": must be given and be " + type_name);
    return *value;
}

void check_members(const JsonValue& fields) {
    for (const auto& [name, value] : fields.object) {
        bool known = name == "compiled_dims" || name == "batch_invariant";
        for (const IntegerField& field : kProblemFields) known = known || name == field.name;
        for (const EnumField& field : kProblemEnums) known = known || name == field.name;
        if (!known)
            throw std::invalid_argument("field " + name.substr(0, 32) +
                                        " is unknown; write the fields of Problem.as_dict() only");
    }
}

void parse_fields(const JsonValue& fields, Problem& problem) {
    check_members(fields);
    for (size_t i = 0; i < kProblemFields.size(); ++i) {
        const JsonValue* value = fields.find(kProblemFields[i].name);
        if (value == nullptr && kProblemFields[i].is_required)
            throw std::invalid_argument(std::string(kProblemFields[i].name) + " is missing");
        if (value != nullptr) set_field(problem, i, check_integer_field(kProblemFields[i], *value));
    }
    if (fields.find("compiled_dims") != nullptr)
        problem.compiled_dims =
            parse_compiled_dims(require(fields, "compiled_dims", JsonValue::Type::kString, "a string").string);
    if (fields.find("batch_invariant") != nullptr)
        problem.batch_invariant = require(fields, "batch_invariant", JsonValue::Type::kBool, "true or false").boolean;
    for (const EnumField& field : kProblemEnums)
        if (fields.find(field.name) != nullptr)
            field.set(problem,
                      parse_enum(field, require(fields, field.name, JsonValue::Type::kString, "a string").string));
}

Problem parse_problem(std::string_view text) {
    const JsonValue root = parse_json(text, kLimits);
    Problem problem;
    problem.op = parse_op(require(root, "op", JsonValue::Type::kString, "a string").string);
    const JsonValue& fields = require(root, "fields", JsonValue::Type::kObject, "an object");
    if (root.object.size() != 2) throw std::invalid_argument("a problem has the members fields and op only");
    parse_fields(fields, problem);
    check_problem(problem);
    return problem;
}

std::string enum_clause(const Problem& problem, size_t field, const char* rule) {
    return std::string(kProblemEnums[field].name) + " = '" + enum_name(kProblemEnums[field], problem) + "': " + rule;
}

std::string integer_clause(const Problem& problem, size_t field, const std::string& rule) {
    return std::string(kProblemFields[field].name) + " = " + std::to_string(get_field(problem, field)) + ": " + rule;
}

// Scales are FP8's, majors BF16's; what is added to D goes with its type.
std::string broken_operand_rule(const Problem& problem) {
    const bool has_scales = is_fp8(problem.op), has_bf16_d = problem.d_dtype == DDtype::kBf16;
    if (!has_scales && problem.recipe != Recipe::k1d2d)
        return enum_clause(problem, 0, "only FP8 operands have scales; leave it out");
    if (!has_scales && problem.scale_layout != ScaleLayout::kMnMajor)
        return enum_clause(problem, 5, "only FP8 operands have scales; leave it out");
    if (has_scales && problem.a_major != Major::kK)
        return enum_clause(problem, 3, "FP8 kernels read K-major operands; leave it out");
    if (has_scales && problem.b_major != Major::kK)
        return enum_clause(problem, 4, "FP8 kernels read K-major operands; leave it out");
    if (problem.recipe == Recipe::kPerRow && problem.scale_layout != ScaleLayout::kMnMajor)
        return enum_clause(problem, 5, "recipe per_row reads its scales at any stride; leave it out");
    if (problem.c_mode == CMode::kAccumulate && has_bf16_d)
        return enum_clause(problem, 2, "needs an FP32 D; pass d_dtype='fp32' or c_mode='general'");
    if (problem.c_mode == CMode::kHeadSplit &&
        !(problem.op == Op::kFp8Gemm && has_bf16_d && problem.recipe == Recipe::k1d2d))
        return enum_clause(problem, 2, "needs fp8_gemm with recipe 1d2d and a BF16 D; use another c_mode");
    return "";
}

// Which fields the groups have, and what fits them.
std::string broken_group_rule(const Problem& problem) {
    const Grouping grouping = grouping_of(problem.op);
    const bool has_groups = grouping != Grouping::kNone;
    if (has_groups && problem.num_groups < 1)
        return integer_clause(problem, 4, "a grouped op has at least one group; pass their number");
    if (!has_groups && problem.num_groups != 0)
        return integer_clause(problem, 4, "only grouped ops have groups; leave it out");
    if (grouping != Grouping::kMMasked && problem.expected_m != 0)
        return integer_clause(problem, 5, "only masked ops take it; leave it out");
    if (problem.expected_m > problem.m)
        return integer_clause(problem, 5, "a group has room for m rows; pass at most m");
    if (grouping != Grouping::kMContiguous && problem.alignment != Problem::kDefaultAlignment)
        return integer_clause(problem, 6, "only m-grouped contiguous ops take it; leave it out");
    if (problem.alignment % Problem::kAlignmentUnit != 0)
        return integer_clause(problem, 6,
                              "must be a multiple of " + std::to_string(Problem::kAlignmentUnit) + "; round it up");
    if (problem.group_layout != GroupLayout::kJoint && problem.op != Op::kKGroupedFp8Contiguous)
        return enum_clause(problem, 6, "only k_grouped_fp8_gemm_contiguous has blocks of memory; leave it out");
    return "";
}

std::string broken_grouped_operand_rule(const Problem& problem) {
    const Grouping grouping = grouping_of(problem.op);
    if (grouping == Grouping::kNone) return "";
    if (problem.recipe == Recipe::kPerRow)
        return enum_clause(problem, 0, "grouped ops scale per 128 of K; use 1d2d or 1d1d");
    if (grouping != Grouping::kKContiguous) {
        if (problem.c_mode != CMode::kNone)
            return enum_clause(problem, 2, "m-grouped ops add nothing to D; leave it out");
        if (problem.a_major != Major::kK)
            return enum_clause(problem, 3, "m-grouped ops read a K-major A; leave it out");
        if (grouping == Grouping::kMMasked && problem.b_major != Major::kK)
            return enum_clause(problem, 4, "masked ops read a K-major B; leave it out");
        return "";
    }
    if (is_fp8(problem.op) && problem.recipe != Recipe::k1d1d)
        return enum_clause(problem, 0, "groups of K have both operands scaled 1x128; use 1d1d");
    if (problem.d_dtype != DDtype::kFp32) return enum_clause(problem, 1, "groups of K sum into an FP32 D; use fp32");
    if (!is_fp8(problem.op) && problem.a_major != Major::kMn)
        return enum_clause(problem, 3, "groups of K have MN-major BF16 operands; use mn");
    if (!is_fp8(problem.op) && problem.b_major != Major::kMn)
        return enum_clause(problem, 4, "groups of K have MN-major BF16 operands; use mn");
    return "";
}

// The first of the rules between fields that `problem` breaks, or an empty string.
std::string broken_combination(const Problem& problem) {
    for (const auto rule : {broken_operand_rule, broken_group_rule, broken_grouped_operand_rule})
        if (std::string broken = rule(problem); !broken.empty()) return broken;
    return "";
}

}  // namespace

int64_t get_field(const Problem& problem, size_t index) {
    const int64_t values[] = {problem.m,          problem.n,          problem.k,        problem.num_sms,
                              problem.num_groups, problem.expected_m, problem.alignment};
    return values[index];
}

void set_field(Problem& problem, size_t index, int64_t value) {
    switch (index) {
        case 0: problem.m = value; break;
        case 1: problem.n = value; break;
        case 2: problem.k = value; break;
        case 3: problem.num_sms = int32_t(value); break;
        case 4: problem.num_groups = int32_t(value); break;
        case 5: problem.expected_m = value; break;
        default: problem.alignment = int32_t(value);
    }
}

std::string_view op_name(Op op) { return kOpNames[size_t(op)]; }

Op parse_op(std::string_view name) {
    std::string known;
    for (Op op : kOps) {
        if (name == op_name(op)) return op;
        known += (known.empty() ? "" : ", ") + std::string(op_name(op));
    }
    throw Error(ErrorKind::kProblem,
                "op = '" + std::string(name.substr(0, 32)) + "': no such op kind; use one of " + known);
}

uint8_t parse_enum(const EnumField& field, std::string_view name) {
    std::string known;
    for (size_t i = 0; i < field.names.size(); ++i) {
        if (name == field.names[i]) return uint8_t(i);
        known += (i == 0 ? "'" : ", '") + std::string(field.names[i]) + "'";
    }
    throw Error(ErrorKind::kProblem, std::string(field.name) + " = '" + std::string(name.substr(0, 32)) +
                                         "': must be one of " + known + "; use one of them");
}

void check_integer_range(const IntegerField& field, int64_t value) {
    if (value >= field.minimum && value <= field.maximum) return;
    throw std::invalid_argument(std::string(field.name) + " = " + std::to_string(value) + ": must be within " +
                                std::to_string(field.minimum) + ".." + std::to_string(field.maximum) +
                                "; pass a size in this range");
}

int64_t check_integer_field(const IntegerField& field, const JsonValue& value) {
    if (value.type != JsonValue::Type::kInt)
        throw std::invalid_argument(std::string(field.name) + ": must be an integer; write it as plain digits");
    check_integer_range(field, value.integer);
    return value.integer;
}

void check_problem(const Problem& problem) {
    try {
        for (size_t i = 0; i < kProblemFields.size(); ++i)
            check_integer_range(kProblemFields[i], get_field(problem, i));
    } catch (const std::invalid_argument& error) {
        throw Error(ErrorKind::kProblem, error.what());
    }
    const std::string combination = broken_combination(problem);
    if (!combination.empty()) throw Error(ErrorKind::kProblem, combination);
}

bool is_consistent(const Problem& problem) { return broken_combination(problem).empty(); }

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
    const uint64_t flags = uint64_t(problem.compiled_dims) << 1 | uint64_t(problem.batch_invariant);
    uint64_t hash = variant_code(problem) + 1;
    const uint64_t groups = uint64_t(problem.num_groups) << 32 | uint64_t(problem.alignment);
    for (uint64_t value : {uint64_t(problem.m), uint64_t(problem.n), uint64_t(problem.k), uint64_t(problem.num_sms),
                           groups, uint64_t(problem.expected_m), flags}) {
        hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 29;
    }
    return size_t(hash);
}

std::string to_string(const Problem& problem) {
    std::string text = std::string(op_name(problem.op)) + " m=" + std::to_string(problem.m) +
                       " n=" + std::to_string(problem.n) + " k=" + std::to_string(problem.k);
    for (size_t i = 3; i < kProblemFields.size(); ++i)
        if (get_field(problem, i) != kProblemFields[i].default_value)
            text += std::string(" ") + kProblemFields[i].name + "=" + std::to_string(get_field(problem, i));
    if (problem.compiled_dims != 0) text += " compiled_dims=" + compiled_dims_text(problem.compiled_dims);
    for (const EnumField& field : kProblemEnums)
        if (field.get(problem) != 0) text += std::string(" ") + field.name + "=" + enum_name(field, problem);
    if (problem.batch_invariant) text += " batch_invariant";
    return text;
}

}  // namespace deep_gemm
