// How a field of a problem or a config is described: once, for everything that lists fields (JSON, hashes, SQL columns,
// command-line options, constructors). Every value is an integer inside C++: a word is its position in `words`, a flag
// is 0 or 1, dims are bits.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace deep_gemm {

// A named integer and its range; `is_required` fields have no default and always enter the key.
struct IntegerField {
    const char* name;
    int64_t minimum, maximum, default_value;
    bool is_required;
};

enum class FieldType : uint8_t { kInteger, kWord, kFlag, kDims };
inline constexpr const char* kFieldTypeNames[] = {"integer", "word", "flag", "dims"};

// size: extents of the product; group: how many groups there are and where their rows lie; variant: decides which
// kernels and configs there are; policy: how the caller wants the problem solved; tile: extents of the CTA tile and its
// ring; knob: how CTAs share the work.
enum class FieldRole : uint8_t { kSize, kGroup, kVariant, kPolicy, kTile, kKnob };
inline constexpr const char* kFieldRoleNames[] = {"size", "group", "variant", "policy", "tile", "knob"};

struct Field : IntegerField {
    FieldType type;
    FieldRole role;
    std::span<const char* const> words;  // of a word, the default first
    const char* meaning;                 // one sentence
};

// Range of an integer field as text, "1..65535".
inline std::string range_text(const IntegerField& field) {
    return std::to_string(field.minimum) + ".." + std::to_string(field.maximum);
}

}  // namespace deep_gemm
