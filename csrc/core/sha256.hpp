// SHA-256 (FIPS 180-4), the identity of problems, configs and artefacts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace deep_gemm {

using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest sha256(const void* data, size_t size);

// The digest as 64 lower-case hexadecimal characters.
std::string to_hex(const Sha256Digest& digest);

inline std::string sha256_hex(std::string_view text) { return to_hex(sha256(text.data(), text.size())); }

// The first 8 bytes read as a big-endian number: the sort key of an artefact's exact table.
uint64_t digest_prefix(const Sha256Digest& digest);

}  // namespace deep_gemm
