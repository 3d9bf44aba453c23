// The default spaces of SM90 GPUs as sold, with the facts of their configs: made once for each variant, and kept.
#include <array>
#include <atomic>
#include <bit>
#include <mutex>

#include "core/candidates.hpp"

namespace deep_gemm {
namespace {

// An upper bound on the variants of an op kind: all combinations of words, heads and page sizes that are each legal by
// themselves.
constexpr size_t count_variants(const OpKind& kind) {
    constexpr size_t kHeads = Problem::kHeadSizes.size(), kPages = Problem::kPageSizes.size();
    size_t count = kind.is_logits() ? kHeads * size_t(Problem::kMaxHeads / Problem::kHeadsUnit) : 1;
    if (kind.is_paged()) count *= kPages * size_t(Problem::kMaxNextN);
    for (const ProblemField& field : kProblemFields)
        if (field.type == FieldType::kWord) count *= size_t(std::popcount(field.legal(kind)));
    return count;
}

constexpr size_t count_all_variants() {
    size_t count = 0;
    for (const OpKind& kind : kOpKinds) count += count_variants(kind);
    return count;
}

std::vector<SpaceTile> make_tiles(const Problem& variant, const Device& device) {
    std::vector<SpaceTile> tiles;
    for (const Config& config : get_default_space(variant, device))
        tiles.push_back({config, find_facts(variant, config)});
    return tiles;
}

// The default spaces of SM90 GPUs by variant, with open addressing. At least half of the slots stay free, because there
// are no more variants. Readers take no lock: a slot is filled once and never changes.
class SpaceTable {
 public:
    const std::vector<SpaceTile>& find_or_make(const Problem& variant) {
        VariantKey key = variant_key(variant);
        if (is_logits(variant)) key.bytes.back() = uint8_t(variant.k);  // the size of a head
        if (const Entry* entry = find(key)->load(std::memory_order_acquire)) return entry->space;
        const std::lock_guard lock(mutex_);
        std::atomic<const Entry*>& slot = *find(key);
        if (slot.load(std::memory_order_relaxed) == nullptr)
            slot.store(new Entry{key, make_space(variant)}, std::memory_order_release);
        return slot.load(std::memory_order_relaxed)->space;
    }

 private:
    struct Entry {
        VariantKey key;
        std::vector<SpaceTile> space;
    };
    static constexpr size_t kNumSlots = std::bit_ceil(2 * count_all_variants());

    // The slot that holds `key`, or the free one where it belongs.
    std::atomic<const Entry*>* find(const VariantKey& key) {
        for (size_t index = hash_value(key);; ++index) {
            std::atomic<const Entry*>& slot = slots_[index % kNumSlots];
            const Entry* entry = slot.load(std::memory_order_acquire);
            if (entry == nullptr || entry->key == key) return &slot;
        }
    }

    static std::vector<SpaceTile> make_space(Problem variant) {
        Device device;
        device.sm_count = Problem::kMaxSms;
        if (op_kind(variant.op).m_is_shared()) variant.alignment = kAnyTileAlignment;  // that of a problem is its own
        return make_tiles(variant, device);
    }

    std::array<std::atomic<const Entry*>, kNumSlots> slots_{};
    std::mutex mutex_;
};

bool is_common(const Device& device) { return device.smem_bytes == kSm90SmemBytes && device.compute_major == 9; }

const std::vector<SpaceTile>& find_common_tiles(const Problem& variant) {
    // Never freed: threads may select until the process ends.
    static SpaceTable& table = *new SpaceTable;
    return table.find_or_make(variant);
}

}  // namespace

Space::Space(const Problem& variant, const Device& device)
    : own_(is_common(device) ? std::vector<SpaceTile>() : make_tiles(variant, device)),
      tiles_(is_common(device) ? find_common_tiles(variant) : own_) {}

}  // namespace deep_gemm
