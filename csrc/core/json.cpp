#include "core/json.hpp"

#include <charconv>
#include <cmath>
#include <stdexcept>

namespace deep_gemm {
namespace {

[[noreturn]] void fail(const std::string& what, size_t position) {
    throw std::invalid_argument("malformed JSON at byte " + std::to_string(position) + ": " + what);
}

class Parser {
 public:
    Parser(std::string_view text, const JsonLimits& limits) : text_(text), limits_(limits) {}

    JsonValue parse() {
        JsonValue value = parse_value(0);
        skip_space();
        if (position_ != text_.size()) fail("text after the value", position_);
        return value;
    }

 private:
    JsonValue parse_value(int depth) {
        if (depth > limits_.max_depth) fail("nested too deeply", position_);
        skip_space();
        JsonValue value;
        switch (peek()) {
            case '{': parse_object(value, depth); break;
            case '[': parse_array(value, depth); break;
            case '"':
                value.type = JsonValue::Type::kString;
                value.string = parse_string();
                break;
            case 't': parse_word("true", value, JsonValue::Type::kBool, true); break;
            case 'f': parse_word("false", value, JsonValue::Type::kBool, false); break;
            case 'n': parse_word("null", value, JsonValue::Type::kNull, false); break;
            default: parse_number(value);
        }
        return value;
    }

    void parse_object(JsonValue& value, int depth) {
        value.type = JsonValue::Type::kObject;
        ++position_;
        skip_space();
        if (accept('}')) return;
        do {
            skip_space();
            if (peek() != '"') fail("a key must be a string", position_);
            const size_t start = position_;
            std::string key = parse_string();
            check_key(value, key, start);
            skip_space();
            expect(':');
            JsonValue member = parse_value(depth + 1);
            value.object.emplace_back(std::move(key), std::move(member));
            skip_space();
        } while (accept(','));
        expect('}');
    }

    void parse_array(JsonValue& value, int depth) {
        value.type = JsonValue::Type::kArray;
        ++position_;
        skip_space();
        if (accept(']')) return;
        do {
            value.array.push_back(parse_value(depth + 1));
            skip_space();
        } while (accept(','));
        expect(']');
    }

    // Canonical text has ascending keys, so one comparison finds duplicates; otherwise objects are kept small.
    void check_key(const JsonValue& value, const std::string& key, size_t start) const {
        constexpr size_t kMaxUnsortedKeys = 64;
        if (limits_.canonical) {
            if (!value.object.empty() && !(value.object.back().first < key)) fail("keys are not ascending", start);
            return;
        }
        if (value.object.size() >= kMaxUnsortedKeys) fail("too many keys", start);
        if (value.find(key) != nullptr) fail("duplicate key", start);
    }

    void parse_word(std::string_view word, JsonValue& value, JsonValue::Type type, bool boolean) {
        if (text_.substr(position_, word.size()) != word) fail("unknown word", position_);
        position_ += word.size();
        value.type = type;
        value.boolean = boolean;
    }

    void parse_number(JsonValue& value) {
        const size_t start = position_;
        const bool is_integer = scan_number();
        const char* first = text_.data() + start;
        const char* last = text_.data() + position_;
        value.type = is_integer ? JsonValue::Type::kInt : JsonValue::Type::kDouble;
        const auto result =
            is_integer ? std::from_chars(first, last, value.integer) : std::from_chars(first, last, value.number);
        if (result.ec != std::errc() || result.ptr != last) fail("number out of range", start);
        if (is_integer) value.number = double(value.integer);
        if (!std::isfinite(value.number)) fail("number out of range", start);
    }

    // Grammar of RFC 8259: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?; returns whether it is an integer.
    bool scan_number() {
        accept('-');
        if (!accept('0')) scan_digits();
        bool is_integer = true;
        if (accept('.')) {
            is_integer = false;
            scan_digits();
        }
        if (accept('e') || accept('E')) {
            is_integer = false;
            if (!accept('+')) accept('-');
            scan_digits();
        }
        return is_integer;
    }

    void scan_digits() {
        const size_t start = position_;
        while (position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9') ++position_;
        if (position_ == start) fail("a value was expected", position_);
    }

    std::string parse_string() {
        expect('"');
        std::string out;
        while (peek() != '"') {
            const unsigned char c = static_cast<unsigned char>(text_[position_++]);
            if (c < 0x20 || c > 0x7e) fail("a string holds printable ASCII and escapes only", position_ - 1);
            if (c == '\\') {
                append_escape(out);
            } else {
                out += static_cast<char>(c);
            }
        }
        ++position_;
        return out;
    }

    void append_escape(std::string& out) {
        constexpr std::string_view kNames = "\"\\/bfnrt", kBytes = "\"\\/\b\f\n\r\t";
        const char c = peek();
        ++position_;
        if (c == 'u') return append_code_point(out);
        const size_t index = kNames.find(c);
        if (index == std::string_view::npos) fail("unknown escape", position_ - 1);
        out += kBytes[index];
    }

    void append_code_point(std::string& out) {
        uint32_t code = parse_hex4();
        if (code >= 0xdc00 && code < 0xe000) fail("lone surrogate", position_);
        if (code >= 0xd800 && code < 0xdc00) {
            expect('\\');
            expect('u');
            const uint32_t low = parse_hex4();
            if (low < 0xdc00 || low >= 0xe000) fail("lone surrogate", position_);
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        }
        append_utf8(out, code);
    }

    static void append_utf8(std::string& out, uint32_t code) {
        if (code < 0x80) {
            out += char(code);
            return;
        }
        const int extra = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        constexpr uint8_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
        out += char(kLead[extra] | code >> (6 * extra));
        for (int i = extra - 1; i >= 0; --i) out += char(0x80 | ((code >> (6 * i)) & 0x3f));
    }

    uint32_t parse_hex4() {
        uint32_t code = 0;
        if (position_ + 4 > text_.size()) fail("unfinished escape", position_);
        const char* first = text_.data() + position_;
        const auto result = std::from_chars(first, first + 4, code, 16);
        if (result.ec != std::errc() || result.ptr != first + 4) fail("unfinished escape", position_);
        position_ += 4;
        return code;
    }

    char peek() const {
        if (position_ >= text_.size()) fail("unexpected end", position_);
        return text_[position_];
    }

    bool accept(char c) {
        if (position_ >= text_.size() || text_[position_] != c) return false;
        ++position_;
        return true;
    }

    void expect(char c) {
        if (!accept(c)) fail(std::string("'") + c + "' was expected", position_);
    }

    void skip_space() {
        if (limits_.canonical) return;
        while (position_ < text_.size() && std::string_view(" \t\r\n").find(text_[position_]) != std::string_view::npos)
            ++position_;
    }

    std::string_view text_;
    const JsonLimits& limits_;
    size_t position_ = 0;
};

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
    for (const Member& member : object)
        if (member.first == key) return &member.second;
    return nullptr;
}

JsonValue parse_json(std::string_view text, const JsonLimits& limits) {
    if (text.size() > limits.max_bytes) fail("text longer than " + std::to_string(limits.max_bytes) + " bytes", 0);
    return Parser(text, limits).parse();
}

}  // namespace deep_gemm
