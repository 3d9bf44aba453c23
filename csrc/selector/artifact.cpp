#include "selector/artifact.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "core/sha256.hpp"

static_assert(std::endian::native == std::endian::little,
              "artefacts hold little-endian numbers that are copied as they are");

namespace deep_gemm {
namespace {

constexpr size_t kMaxHeaderBytes = size_t(1) << 20;
constexpr size_t kMaxArrays = 256, kMaxDimensions = 2;
constexpr int64_t kMaxArraySize = int64_t(1) << 24;  // along one dimension: more than 16 MiB hold
constexpr JsonLimits kJsonLimits = {kMaxHeaderBytes, 6, true};

struct PlacedArray {
    const JsonValue::Member* member;
    int64_t element_bytes, begin, end;
};

JsonValue parse(std::string_view text, const char* what) {
    try {
        return parse_json(text, kJsonLimits);
    } catch (const std::invalid_argument& error) {
        refuse(std::string(what) + ": " + error.what());
    }
}

std::string_view header_text(std::string_view content) {
    if (content.size() < 8 || content.size() > kMaxArtifactBytes)
        refuse("file of " + std::to_string(content.size()) + " bytes; it must hold 8 bytes to 16 MiB");
    uint64_t size;
    std::memcpy(&size, content.data(), 8);
    if (size > kMaxHeaderBytes || size > content.size() - 8 || size % 8 != 0) refuse("the header's length is wrong");
    std::string_view text = content.substr(8, size);
    const size_t last = text.find_last_not_of(' ');
    if (last == std::string_view::npos || text.size() - last > 8) refuse("the header's padding is wrong");
    return text.substr(0, last + 1);
}

int64_t element_bytes(const std::string& dtype) {
    if (dtype == "F64" || dtype == "U64") return 8;
    if (dtype == "F32" || dtype == "I32") return 4;
    refuse("unknown dtype");
}

bool is_array_name(std::string_view name) {
    if (name.empty() || name.size() > 64) return false;
    return std::all_of(name.begin(), name.end(),
                       [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '/'; });
}

std::vector<int64_t> integers(const JsonValue* value, size_t max_count) {
    if (value == nullptr || value->type != JsonValue::Type::kArray || value->array.size() > max_count)
        refuse("an array entry lacks a list of integers");
    std::vector<int64_t> out;
    for (const JsonValue& item : value->array) {
        if (item.type != JsonValue::Type::kInt || item.integer < 0 || item.integer > kMaxArraySize)
            refuse("an array entry holds a number out of range");
        out.push_back(item.integer);
    }
    return out;
}

PlacedArray place_array(const JsonValue::Member& member) {
    const JsonValue& entry = member.second;
    if (!is_array_name(member.first)) refuse("an array's name is not made of a-z, 0-9, _ and /");
    if (entry.type != JsonValue::Type::kObject || entry.object.size() != 3)
        refuse("an array entry must have data_offsets, dtype and shape");
    const JsonValue* dtype = entry.find("dtype");
    if (dtype == nullptr || dtype->type != JsonValue::Type::kString) refuse("an array entry lacks its dtype");
    const auto offsets = integers(entry.find("data_offsets"), 2);
    if (offsets.size() != 2 || offsets[0] > offsets[1]) refuse("an array entry lacks its two offsets");
    int64_t bytes = element_bytes(dtype->string);
    for (int64_t size : integers(entry.find("shape"), kMaxDimensions))
        bytes = std::min(bytes * size, 2 * kMaxArraySize);
    if (bytes != offsets[1] - offsets[0]) refuse("array " + member.first + " has another size than its shape says");
    return {&member, element_bytes(dtype->string), offsets[0], offsets[1]};
}

// Names ascend already (canonical JSON); a stable sort by element size gives the only accepted order.
std::vector<PlacedArray> place_arrays(const JsonValue& header, size_t data_bytes) {
    std::vector<PlacedArray> placed;
    for (const JsonValue::Member& member : header.object)
        if (member.first != "__metadata__") placed.push_back(place_array(member));
    if (placed.size() > kMaxArrays) refuse("more than 256 arrays");
    std::stable_sort(placed.begin(), placed.end(),
                     [](const PlacedArray& a, const PlacedArray& b) { return a.element_bytes > b.element_bytes; });
    int64_t position = 0;
    for (const PlacedArray& array : placed) {
        if (array.begin != position) refuse("array " + array.member->first + " is not where the layout wants it");
        position = array.end;
    }
    if (size_t(position) != data_bytes) refuse("the arrays end elsewhere than the file");
    return placed;
}

JsonValue read_metadata(const JsonValue& header) {
    const JsonValue* outer = header.type == JsonValue::Type::kObject ? header.find("__metadata__") : nullptr;
    const JsonValue* inner = outer != nullptr && outer->object.size() == 2 ? outer->find("deep_gemm") : nullptr;
    const JsonValue* hash = inner != nullptr ? outer->find("sha256") : nullptr;
    if (hash == nullptr || inner->type != JsonValue::Type::kString)
        refuse("not a deep_gemm selector: its metadata is missing");
    if (hash->string != sha256_hex(inner->string)) refuse("the metadata differs from its SHA-256");
    JsonValue metadata = parse(inner->string, "metadata");
    if (metadata.type != JsonValue::Type::kObject) refuse("the metadata is no object");
    return metadata;
}

void check_hash(const JsonValue& metadata, std::string_view data) {
    const JsonValue* stated = metadata.find("arrays_sha256");
    if (stated == nullptr || stated->type != JsonValue::Type::kString) refuse("arrays_sha256 is missing");
    if (stated->string != sha256_hex(data)) refuse("the arrays differ from their SHA-256");
}

}  // namespace

void refuse(const std::string& what) { throw Error(ErrorKind::kModel, what + "; export the selector again"); }

Artifact read_artifact(std::string_view content) {
    const std::string_view text = header_text(content);
    uint64_t header_bytes;
    std::memcpy(&header_bytes, content.data(), 8);
    const std::string_view data = content.substr(8 + header_bytes);
    const JsonValue header = parse(text, "header");
    Artifact artifact{read_metadata(header), {}};
    for (const PlacedArray& array : place_arrays(header, data.size())) {
        const auto& [name, entry] = *array.member;
        artifact.arrays[name] = {entry.find("dtype")->string, integers(entry.find("shape"), kMaxDimensions),
                                 data.substr(size_t(array.begin), size_t(array.end - array.begin))};
    }
    check_hash(artifact.metadata, data);
    return artifact;
}

int64_t array_size(const Artifact& artifact, const std::string& name, size_t dimension) {
    const auto found = artifact.arrays.find(name);
    if (found == artifact.arrays.end() || found->second.shape.size() <= dimension)
        refuse("array " + name + " is missing or has too few dimensions");
    return found->second.shape[dimension];
}

const ArrayView& checked_array(const Artifact& artifact, const std::string& name, const char* dtype,
                               std::initializer_list<int64_t> shape) {
    const auto found = artifact.arrays.find(name);
    if (found == artifact.arrays.end()) refuse("array " + name + " is missing");
    if (found->second.dtype != dtype) refuse("array " + name + " must be of dtype " + dtype);
    if (!std::equal(shape.begin(), shape.end(), found->second.shape.begin(), found->second.shape.end()))
        refuse("array " + name + " has the wrong shape");
    return found->second;
}

}  // namespace deep_gemm
