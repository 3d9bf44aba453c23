// A strict, bounded JSON reader for problem and config descriptions and for artefact headers.
// Rejected with std::invalid_argument: text over the size limit, nesting over the depth limit, duplicate keys, integers
// outside 64 bits, non-finite numbers, raw control and non-ASCII characters, lone surrogates, anything after the value.
// In canonical mode also white space between tokens and keys that are not strictly ascending.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deep_gemm {

struct JsonValue {
    enum class Type { kNull, kBool, kInt, kDouble, kString, kArray, kObject };
    using Member = std::pair<std::string, JsonValue>;

    Type type = Type::kNull;
    bool boolean = false;
    int64_t integer = 0;
    double number = 0.0;  // also set for kInt
    std::string string;
    std::vector<JsonValue> array;
    std::vector<Member> object;

    // The member called `key`, or nullptr; for objects only.
    const JsonValue* find(std::string_view key) const;
};

struct JsonLimits {
    size_t max_bytes;
    int max_depth;
    bool canonical;
};

JsonValue parse_json(std::string_view text, const JsonLimits& limits);

}  // namespace deep_gemm
