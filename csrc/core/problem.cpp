#include "core/problem.hpp"

#include <algorithm>
#include <bit>

#include "core/error.hpp"
#include "core/legality.hpp"
#include "core/text.hpp"

namespace deep_gemm {
namespace {

constexpr std::string_view kDimNames = "mnk";

constexpr size_t kNumVariantFields =
    size_t(std::count_if(kProblemFields.begin(), kProblemFields.end(),
                         [](const Field& field) { return field.role == FieldRole::kVariant; }));
static_assert(2 + kNumVariantFields <= sizeof(VariantKey::bytes),
              "a byte for the version, the op and every variant field");

// Positions of the variant fields in kProblemFields.
constexpr std::array<size_t, kNumVariantFields> kVariantFields = [] {
    std::array<size_t, kNumVariantFields> positions{};
    size_t count = 0;
    for (size_t i = 0; i < kProblemFields.size(); ++i)
        if (kProblemFields[i].role == FieldRole::kVariant) positions[count++] = i;
    return positions;
}();

// SplitMix64's finaliser: spreads every bit over all bits.
constexpr uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

std::string clause(const Field& field, const std::string& value, const std::string& rule) {
    return std::string(field.name) + " = " + (field.type == FieldType::kWord ? '\'' + value + '\'' : value) + ": " +
           rule;
}

std::string clause(const char* name, const Problem& problem, const std::string& rule) {
    const ProblemField& field = *find_problem_field(name);
    return clause(field, value_text(field, problem), rule);
}

// "takes only 'k'; leave it out", "takes only '1d1d'; pass it", "takes '1d2d' or '1d1d'; pass one of them".
std::string legal_words_text(const ProblemField& field, uint32_t legal) {
    std::string text;
    int remaining = std::popcount(legal);
    const std::string remedy = legal & 1 ? "; leave it out" : remaining == 1 ? "; pass it" : "; pass one of them";
    text = remaining == 1 ? "takes only " : "takes ";
    for (size_t i = 0; i < field.words.size(); ++i) {
        if (!(legal >> i & 1)) continue;
        text += '\'' + std::string(field.words[i]) + '\'';
        --remaining;
        text += remaining > 1 ? ", " : remaining == 1 ? " or " : "";
    }
    return text + remedy;
}

// What the op kind does not take at all.
std::string broken_kind_rule(const Problem& problem) {
    const OpKind& kind = op_kind(problem.op);
    for (const ProblemField& field : kProblemFields) {
        if (field.legal == nullptr) continue;
        const int64_t value = field.get(problem);
        const uint32_t legal = field.legal(kind);
        const std::string name = kind.name;
        if (field.type == FieldType::kWord && !(legal >> value & 1))
            return clause(field, value_text(field, problem), name + ' ' + legal_words_text(field, legal));
        if (field.type == FieldType::kInteger && legal == 0 && value != field.default_value)
            return clause(field, value_text(field, problem), name + " does not take it; leave it out");
    }
    return "";
}

std::string broken_group_rule(const Problem& problem) {
    if (op_kind(problem.op).is_grouped() && problem.num_groups < 1)
        return clause("num_groups", problem, "a grouped op has at least one group; pass their number");
    const bool may_fill = op_kind(problem.op).m_is_shared();
    if (problem.expected_m > (may_fill ? std::max<int64_t>(problem.m, problem.alignment) : problem.m))
        return clause("expected_m", problem, "a group has at most m rows; pass no more");
    if (problem.alignment % Problem::kAlignmentUnit != 0)
        return clause("alignment", problem,
                      "must be a multiple of " + std::to_string(Problem::kAlignmentUnit) + "; round it up");
    return "";
}

std::string broken_operand_rule(const Problem& problem) {
    const bool has_bf16_d = problem.d_dtype == DDtype::kBf16;
    if (problem.recipe == Recipe::kPerRow && problem.scale_layout != ScaleLayout::kMnMajor)
        return clause("scale_layout", problem, "recipe per_row reads its scales at any stride; leave it out");
    if (problem.c_mode == CMode::kAccumulate && has_bf16_d)
        return clause("c_mode", problem, "needs an FP32 D; pass d_dtype='fp32' or c_mode='general'");
    if (problem.c_mode == CMode::kHeadSplit && !(has_bf16_d && problem.recipe == Recipe::k1d2d))
        return clause("c_mode", problem, "needs recipe 1d2d and a BF16 D; use another c_mode");
    return "";
}

std::string broken_logits_rule(const Problem& problem) {
    const OpKind& kind = op_kind(problem.op);
    if (!kind.is_logits()) return "";
    if (problem.heads < 1 || problem.heads % Problem::kHeadsUnit != 0)
        return clause("heads", problem, "must be a multiple of 8 within 8..128; pass the heads of the queries");
    if (!Problem::is_head_size(problem.k))
        return clause("k", problem, "attention logits have heads of 32, 64 or 128; pass one of them");
    if (kind.is_paged() && !Problem::is_page_size(problem.block_kv))
        return clause("block_kv", problem, "must be 32 or 64; pass the keys in a page");
    if (problem.m % problem.next_n != 0)
        return clause("m", problem, "must be a multiple of next_n; pass all tokens of every sequence");
    return "";
}

// The first of the rules between fields that `problem` breaks, or an empty string.
std::string broken_combination(const Problem& problem) {
    for (const auto rule : {broken_kind_rule, broken_group_rule, broken_operand_rule, broken_logits_rule})
        if (std::string broken = rule(problem); !broken.empty()) return broken;
    return "";
}

template <size_t... index>
uint64_t hash_fields(const Problem& problem, std::index_sequence<index...>) {
    return (... + (uint64_t(kProblemFields[index].get(problem)) * (mix(index + 1) | 1)));
}

template <size_t... index>
VariantKey make_variant_key(const Problem& problem, std::index_sequence<index...>) {
    return {
        {VariantKey::kVersion, uint8_t(problem.op), uint8_t(kProblemFields[kVariantFields[index]].get(problem))...}};
}

}  // namespace

const ProblemField* find_problem_field(std::string_view name) {
    for (const ProblemField& field : kProblemFields)
        if (name == field.name) return &field;
    return nullptr;
}

std::optional<Problem> find_masked_twin(const Problem& problem) {
    if (!fills_part(problem)) return std::nullopt;
    const auto is_twin = [&](Op op) { return op_kind(op).has_room() && is_fp8(op) == is_fp8(problem.op); };
    Problem twin = problem;
    twin.op = *std::find_if(kOps.begin(), kOps.end(), is_twin);
    twin.alignment = Problem::kDefaultAlignment;
    return is_consistent(twin) ? std::optional(twin) : std::nullopt;
}

int64_t round_expected_m(int64_t expected_m, int64_t m) {
    constexpr int kSignificantBits = 3;
    const int64_t rows = std::clamp<int64_t>(expected_m, 1, m);
    const int shift = std::max(int(std::bit_width(uint64_t(rows))) - kSignificantBits, 0);
    return std::min(m, (rows + (int64_t(1) << shift) - 1) >> shift << shift);
}

int64_t hold_expected_m(const Problem& problem, int64_t rows) {
    const int64_t rounded = round_expected_m(rows, problem.m);
    if (grouping_of(problem.op) != Grouping::kMPsum) return rounded;
    return rows < problem.alignment ? std::min<int64_t>(rounded, problem.alignment) : problem.alignment;
}

VariantKey variant_key(const Problem& problem) {
    return make_variant_key(problem, std::make_index_sequence<kNumVariantFields>());
}

size_t hash_value(const VariantKey& key) {
    const auto words = std::bit_cast<std::array<uint64_t, 2>>(key.bytes);
    return size_t(mix(words[0] ^ mix(words[1])));
}

size_t hash_value(const Problem& problem) {
    const uint64_t sum = hash_fields(problem, std::make_index_sequence<kProblemFields.size()>());
    return size_t(mix(sum + uint64_t(problem.op) + (problem.has_signals ? kNumOps : 0)));
}

Problem kernel_identity(const Problem& problem) {
    const OpKind& kind = op_kind(problem.op);
    Problem kernel = problem;
    if (!(problem.compiled_dims & Problem::kCompileM)) kernel.m = problem.next_n;
    if (!(problem.compiled_dims & Problem::kCompileN)) kernel.n = 1;
    if (!(problem.compiled_dims & Problem::kCompileK) && !kind.is_logits()) kernel.k = 1;
    kernel.num_groups = kind.is_grouped() ? 1 : 0;
    kernel.expected_m = 0;
    if (kind.m_is_shared()) kernel.alignment = kAnyTileAlignment;
    kernel.num_sms = 0;
    kernel.batch_invariant = false;
    return kernel;
}

int64_t parse_word(const ProblemField& field, std::string_view name) {
    std::string known;
    for (size_t i = 0; i < field.words.size(); ++i) {
        if (name == field.words[i]) return int64_t(i);
        known += (i == 0 ? "'" : ", '") + std::string(field.words[i]) + "'";
    }
    throw Error(ErrorKind::kProblem,
                std::string(field.name) + " = " + quote(name) + ": must be one of " + known + "; use one of them");
}

std::string value_text(const ProblemField& field, const Problem& problem) {
    const int64_t value = field.get(problem);
    switch (field.type) {
        case FieldType::kWord: return field.words[size_t(value)];
        case FieldType::kFlag: return value != 0 ? "true" : "false";
        case FieldType::kDims: return compiled_dims_text(uint8_t(value));
        default: return std::to_string(value);
    }
}

void check_problem(const Problem& problem) {
    for (const ProblemField& field : kProblemFields) {
        const int64_t value = field.get(problem);
        if (value < field.minimum || value > field.maximum)
            throw Error(ErrorKind::kProblem,
                        clause(field, std::to_string(value),
                               "must be within " + range_text(field) + "; pass a size in this range"));
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
            throw Error(ErrorKind::kProblem, "compiled_dims = " + quote(text) +
                                                 ": must be a subset of 'mnk' in this order; for example 'nk'");
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

std::string to_string(const Problem& problem) {
    std::string text(op_name(problem.op));
    for (const ProblemField& field : kProblemFields) {
        if (!field.is_required && field.get(problem) == field.default_value) continue;
        text += std::string(" ") + field.name;
        if (field.type != FieldType::kFlag) text += '=' + value_text(field, problem);
    }
    return text;
}

}  // namespace deep_gemm
