// Text of callers and files in messages. It may be of any length, and may hold what a terminal would obey.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace deep_gemm {

// The longest prefix of at most `limit` bytes that splits no character of UTF-8.
inline std::string_view clip_utf8(std::string_view text, size_t limit) {
    if (text.size() <= limit) return text;
    while (limit > 0 && (text[limit] & 0xC0) == 0x80) --limit;
    return text.substr(0, limit);
}

// The text in quotation marks, at most `limit` bytes of it; each byte of a control character becomes a question mark.
inline std::string quote(std::string_view text, size_t limit = 64) {
    const std::string_view kept = clip_utf8(text, limit);
    std::string quoted = "'";
    for (size_t i = 0; i < kept.size(); ++i) {
        const auto byte = static_cast<unsigned char>(kept[i]);
        const bool begins_c1 =  // U+0080 to U+009F
            byte == 0xC2 && i + 1 < kept.size() && static_cast<unsigned char>(kept[i + 1]) < 0xA0;
        if (begins_c1) ++i;
        quoted += begins_c1 ? "??" : byte < 0x20 || byte == 0x7F ? "?" : std::string(1, kept[i]);
    }
    return quoted + (kept.size() < text.size() ? "'..." : "'");
}

// What a message says of a field that breaks a rule.
inline std::string clause(const char* name, int64_t value, const std::string& rule) {
    return std::string(name) + " = " + std::to_string(value) + ": " + rule;
}

}  // namespace deep_gemm
