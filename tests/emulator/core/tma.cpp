// TMA: boxes of tensor maps between global and shared memory, and the maps that kernels change.
#include "instruction.hpp"
#include "instructions.hpp"
#include "tensor_map.h"

namespace emulator {
namespace {

static_assert(sizeof(StubTensorMap) == 128);

// A box of a tensor map at given coordinates.
struct Box {
    StubTensorMap map;
    i64 at[4] = {};
    u32 sizes[4] = {1, 1, 1, 1};  // elements that reach shared memory
    u32 element;

    Box(const void* pointer, const u32* coordinates, u32 rank) {
        std::memcpy(&map, pointer, sizeof map);
        if (map.number == 0) throw std::string("TMA with a tensor map that nobody has encoded");
        if (map.rank != rank)
            throw "TMA of rank " + std::to_string(rank) + " with a tensor map of rank " + std::to_string(map.rank);
        if (map.interleave != 0) throw std::string("interleaved tensor maps are not modelled");
        element = map.type == 9 || map.type == 6 ? 2 : map.type == 7 || map.type == 4 || map.type == 2 ? 4 : 1;
        for (u32 dim = 0; dim < rank; ++dim) {
            at[dim] = int32_t(coordinates[dim]);
            sizes[dim] = (map.box[dim] + map.element_strides[dim] - 1) / map.element_strides[dim];
        }
        if (map.swizzle > 0 && row_bytes() > 16u << map.swizzle)
            throw std::string("a row of a box is wider than its swizzle");
        // No table of the CUDA programming guide says it; an H200 answers with an illegal instruction.
        if (at[0] * i64(element) % 16 != 0) throw std::string("a box begins within 16 bytes of a row");
    }

    u32 row_bytes() const { return sizes[0] * element; }
    u32 rows() const { return sizes[1] * sizes[2] * sizes[3]; }
    u32 bytes() const { return rows() * row_bytes(); }

    // The swizzle exchanges 16-byte units within 128-byte lines of shared memory, by the number of the line.
    u32 place(u32 begin, u32 row, u32 byte) const {
        const u32 offset = begin + row * row_bytes() + byte;
        return map.swizzle == 0 ? offset : offset ^ (offset >> 7 & ((1u << map.swizzle) - 1)) << 4;
    }

    // Calls `copy(offset in shared memory, global memory or null, bytes)` for every unit of the box; null: beyond the
    // tensor. A unit ends where the tensor's row does, rounded up to `clip` bytes.
    template <class Copy>
    void each(u32 begin, u32 clip, Copy copy) const {
        for (u32 row = 0; row < rows(); ++row) {
            const u32 index[4] = {0, row % sizes[1], row / sizes[1] % sizes[2], row / sizes[1] / sizes[2]};
            u8* line = find_line(index);
            for (u32 column = 0; column < sizes[0]; ++column) {
                const i64 x = at[0] + i64(column) * map.element_strides[0];
                const bool exists =
                    line != nullptr && x >= 0 && x * element < round_up(i64(map.dims[0]) * element, clip);
                copy(place(begin, row, column * element), exists ? line + x * element : nullptr, element);
            }
        }
    }

 private:
    static i64 round_up(i64 value, u32 unit) { return (value + unit - 1) / unit * unit; }

    u8* find_line(const u32 (&index)[4]) const {
        u8* line = reinterpret_cast<u8*>(map.address);
        for (u32 dim = 1; dim < map.rank; ++dim) {
            const i64 place = at[dim] + i64(index[dim]) * map.element_strides[dim];
            if (place < 0 || place >= i64(map.dims[dim])) return nullptr;
            line += place * i64(map.strides[dim - 1]);
        }
        return line;
    }
};

constexpr u32 kAlignment = 128;  // of a box in shared memory
constexpr u32 kStoreClip = 16;   // a store writes whole units of 16 bytes (seen on an H200)

void check_place(u32 offset) {
    if (offset % kAlignment != 0)
        throw "TMA at shared offset " + std::to_string(offset) + ", which is no multiple of 128";
}

void load_into(Cta& cta, u32 offset, u32 barrier, const Box& box) {
    const Range range{offset, box.bytes()};
    find_barrier({cta, barrier});
    check_fenced(cta, {barrier, 8}, "TMA with a barrier");
    check_refill(cta, range);
    cta.shared.begin_write(range);
    world.post([&cta, range, barrier, box] {
        box.each(range.begin, box.element, [&](u32 to, const u8* from, u32 bytes) {
            u8* memory = cta.shared.at({to, bytes});
            from != nullptr ? std::memcpy(memory, from, bytes) : std::memset(memory, 0, bytes);
        });
        complete_bytes({cta, barrier}, range.size, range);
    });
}

// Read the box from shared memory into `held`.
std::vector<u8> take(Cta& cta, u32 offset, const Box& box) {
    std::vector<u8> held;
    box.each(offset, kStoreClip, [&](u32 from, const u8*, u32 bytes) {
        const u8* memory = cta.shared.at({from, bytes});
        held.insert(held.end(), memory, memory + bytes);
    });
    return held;
}

void put(const Box& box, const std::vector<u8>& held, bool adds) {
    const u8* from = held.data();
    box.each(0, kStoreClip, [&](u32, u8* to, u32 bytes) {
        if (to != nullptr && adds) {
            float sum, part;
            std::memcpy(&sum, to, 4), std::memcpy(&part, from, 4);
            sum += part;
            std::memcpy(to, &sum, 4);
        } else if (to != nullptr) {
            std::memcpy(to, from, bytes);
        }
        from += bytes;
    });
}

void end_reads(Cta& cta, BulkGroup& group) {
    if (group.is_read_known) return;
    group.is_read_known = true;
    for (const Range& range : group.ranges) cta.shared.end_read(range);
}

StubTensorMap& field_of(void* map) {
    StubTensorMap& fields = *static_cast<StubTensorMap*>(map);
    if (fields.number == 0) throw std::string("tensormap.replace in a map that nobody has encoded");
    return fields;
}

}  // namespace

void tma_load(u32 destination, const void* map, const u32* at, u32 rank, u32 barrier, u32 mask) {
    EMULATOR_ENTER();
    attempt([&] {
        const Box box(map, at, rank);
        const Place to = locate_own(destination), arrival = locate_own(barrier);
        check_place(to.offset);
        Cluster& cluster = *self().cta->cluster;
        if (mask == 0) mask = 1u << self().cta->rank;
        if (mask >> cluster.ctas.size() != 0)
            throw std::string("TMA multicast to a CTA that the cluster does not have");
        for (auto& cta : cluster.ctas)
            if (mask >> cta->rank & 1) load_into(*cta, to.offset, arrival.offset, box);
    });
}

void tma_store(const void* map, const u32* at, u32 rank, u32 source, bool adds) {
    EMULATOR_ENTER();
    attempt([&] {
        const Box box(map, at, rank);
        if (adds && box.map.type != 7) throw std::string("TMA adds FP32 only here");
        const Place from = locate_own(source);
        check_place(from.offset);
        const Range range{from.offset, box.bytes()};
        check_fenced(from.cta, range, "TMA");
        from.cta.shared.begin_read(range);
        Thread& thread = self();
        if (!thread.open_group) thread.open_group = std::make_shared<BulkGroup>();
        thread.open_group->ranges.push_back(range);
        ++thread.open_group->reads, ++thread.open_group->writes;
        world.post([=, cta = &from.cta, group = thread.open_group] {
            const std::vector<u8> held = take(*cta, range.begin, box);
            --group->reads;
            world.wake(group->waiters);
            world.post([=] {
                put(box, held, adds);
                --group->writes;
                world.wake(group->waiters);
            });
        });
    });
}

void bulk_wait(u32 pending, bool waits_for_reads_only) {
    EMULATOR_ENTER();
    attempt([&] {
        Thread& thread = self();
        for (size_t i = 0; i + pending < thread.bulk_groups.size(); ++i) {
            const std::shared_ptr<BulkGroup> group = thread.bulk_groups[i];
            while (group->reads > 0 || (!waits_for_reads_only && group->writes > 0))
                world.wait(group->waiters, "a group of bulk copies");
            end_reads(*thread.cta, *group);
        }
        std::erase_if(thread.bulk_groups, [](const auto& group) { return group->is_read_known && group->writes == 0; });
    });
}

namespace op {

void check_policy(u64 policy) {
    if (policy == kEvictFirst) return;
    attempt([] { throw std::string("a load has an L2 policy that was not created"); });
}

void cp_async_bulk_commit_group() {
    EMULATOR_ENTER();
    Thread& thread = self();
    thread.bulk_groups.push_back(thread.open_group ? thread.open_group : std::make_shared<BulkGroup>());
    thread.open_group = nullptr;
}

void tensormap_replace_tile_global_address_global_b1024_b64(void* map, const void* address) {
    EMULATOR_ENTER();
    attempt([&] { field_of(map).address = reinterpret_cast<u64>(address); });
}

void tensormap_replace_tile_global_dim_global_b1024_b32(void* map, u32 dim, u32 size) {
    EMULATOR_ENTER();
    attempt([&] { field_of(map).dims[dim] = size; });
}

void tensormap_replace_tile_global_stride_global_b1024_b64(void* map, u32 dim, u64 stride) {
    EMULATOR_ENTER();
    attempt([&] {
        if (stride % 16 != 0) throw "tensormap.replace: a pitch of " + std::to_string(stride) + " bytes";
        field_of(map).strides[dim] = stride;
    });
}

}  // namespace op
}  // namespace emulator
