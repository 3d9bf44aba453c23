// The container of a selector artefact (`<sku>.dgsel`), in the safetensors layout:
//
//   u64       header length H, little endian, a multiple of 8, at most 1 MiB
//   H bytes   canonical JSON, padded with spaces: array name ->
//   {"data_offsets":[begin,end],"dtype":"F64","shape":[...]}, and
//             "__metadata__" -> {"deep_gemm":"<canonical JSON>","sha256":"<hash of that text>"}. Canonical = ascending
//             keys, no white space, ASCII
//   data      the arrays without gaps: those of 8-byte elements in ascending order of names, then those of 4-byte
//   elements
//
// The metadata's "arrays_sha256" covers the data. The file is at most 16 MiB and nothing follows the data. What arrays
// and metadata mean is said in selector/selector.hpp. Reading is iterative and bounded by the file's size; anything
// else than the above is refused with Error(kModel), never used in part.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/error.hpp"
#include "core/json.hpp"

namespace deep_gemm {

inline constexpr size_t kMaxArtifactBytes = size_t(16) << 20;

struct ArrayView {
    std::string dtype;
    std::vector<int64_t> shape;
    std::string_view bytes;  // into the artefact's content
};

struct Artifact {
    JsonValue metadata;
    std::map<std::string, ArrayView> arrays;
};

[[noreturn]] void refuse(const std::string& what);  // throws Error(kModel) with the remedy

// Read the container; the views point into `content`.
Artifact read_artifact(std::string_view content);

// The array's size along `dimension`; refuses an array that is missing or has fewer dimensions.
int64_t array_size(const Artifact& artifact, const std::string& name, size_t dimension);

// The array `name`, which must have this dtype and shape.
const ArrayView& checked_array(const Artifact& artifact, const std::string& name, const char* dtype,
                               std::initializer_list<int64_t> shape);

template <typename T>
constexpr const char* dtype_name() {
    if constexpr (std::is_same_v<T, double>) return "F64";
    if constexpr (std::is_same_v<T, float>) return "F32";
    if constexpr (std::is_same_v<T, int32_t>) return "I32";
    if constexpr (std::is_same_v<T, uint64_t>) return "U64";
}

// A copy of the array `name`, which must have elements T and this shape.
template <typename T>
std::vector<T> take_array(const Artifact& artifact, const std::string& name, std::initializer_list<int64_t> shape) {
    const ArrayView& view = checked_array(artifact, name, dtype_name<T>(), shape);
    std::vector<T> values(view.bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), view.bytes.data(), view.bytes.size());
    return values;
}

}  // namespace deep_gemm
