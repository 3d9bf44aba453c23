#include "selector/metadata.hpp"

#include <algorithm>

#include "selector/artifact.hpp"

namespace deep_gemm {

void check_members(const JsonValue& object, std::initializer_list<std::string_view> names) {
    if (object.type != JsonValue::Type::kObject || object.object.size() != names.size())
        refuse("the metadata has unknown or missing members");
    for (std::string_view name : names)
        if (object.find(name) == nullptr) refuse("the metadata lacks " + std::string(name));
}

const JsonValue& member(const JsonValue& object, std::string_view name, JsonValue::Type type) {
    const JsonValue* value = object.find(name);
    if (value == nullptr || value->type != type)
        refuse("the metadata's " + std::string(name) + " is missing or of the wrong type");
    return *value;
}

const std::string& member_string(const JsonValue& object, std::string_view name, size_t max_length) {
    const std::string& text = member(object, name, JsonValue::Type::kString).string;
    if (text.size() > max_length) refuse("the metadata's " + std::string(name) + " is too long");
    return text;
}

int64_t member_integer(const JsonValue& object, std::string_view name, int64_t minimum, int64_t maximum) {
    const int64_t value = member(object, name, JsonValue::Type::kInt).integer;
    if (value < minimum || value > maximum) refuse("the metadata's " + std::string(name) + " is out of range");
    return value;
}

double member_number(const JsonValue& object, std::string_view name, double minimum, double maximum) {
    const JsonValue* value = object.find(name);
    const bool is_number =
        value != nullptr && (value->type == JsonValue::Type::kInt || value->type == JsonValue::Type::kDouble);
    if (!is_number || !(value->number >= minimum && value->number <= maximum))
        refuse("the metadata's " + std::string(name) + " is no number of its range");
    return value->number;
}

void check_hex(std::string_view text, size_t length, const char* what) {
    const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
    if (text.size() != length || !std::all_of(text.begin(), text.end(), is_digit))
        refuse(std::string(what) + " is no hexadecimal hash");
}

}  // namespace deep_gemm
