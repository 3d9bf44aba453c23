// Checked access to the members of an artefact's metadata; everything unexpected is refused.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "core/json.hpp"

namespace deep_gemm {

// The object must have exactly these members.
void check_members(const JsonValue& object, std::initializer_list<std::string_view> names);

const JsonValue& member(const JsonValue& object, std::string_view name, JsonValue::Type type);
const std::string& member_string(const JsonValue& object, std::string_view name, size_t max_length);
int64_t member_integer(const JsonValue& object, std::string_view name, int64_t minimum, int64_t maximum);
double member_number(const JsonValue& object, std::string_view name, double minimum, double maximum);

// `text` must be `length` lower-case hexadecimal digits.
void check_hex(std::string_view text, size_t length, const char* what);

}  // namespace deep_gemm
