// Shared memory by ordinary loads and stores, cp.async, st.async, and the fences between ordinary and asynchronous
// accesses.
#include <algorithm>

#include "instruction.hpp"
#include "instructions.hpp"

namespace emulator {

void check_fenced(Cta& cta, Range range, const std::string& reader) {
    cta.shared.each_writer(range, [&](const Writer& writer) {
        if (cta.threads[writer.thread]->last_fence > writer.step || self().last_fence > writer.step) return;
        throw reader + SharedMemory::describe(" reads", range) + ", which holds what thread " +
            std::to_string(writer.thread) + " stored, and no fence.proxy.async lies between";
    });
}

u8* dynamic_shared() { return self().cta->shared.at({SharedMemory::kBase, 1}); }

void* static_shared(const void* key, size_t bytes) {
    void* memory = nullptr;
    attempt([&] {
        Cta& cta = *self().cta;
        const auto [found, is_new] = cta.statics.try_emplace(key, cta.static_end);
        if (is_new) cta.static_end += u32(bytes + 15) / 16 * 16;
        memory = cta.shared.at({found->second, u32(bytes)});
    });
    return memory;
}

u32 address_of_shared(const void* pointer) {
    return shared_address_of(*self().cta,
                             u32(static_cast<const u8*>(pointer) - dynamic_shared()) + SharedMemory::kBase);
}

u32 special_cluster_ctarank() { return self().cta->rank; }

static void check_alignment(u32 address, u32 bytes) {
    if (address % bytes != 0)
        throw "an access of " + std::to_string(bytes) + " bytes at shared address " + std::to_string(address);
}

void load_shared(void* to, u32 address, u32 bytes, u32 elements) {
    EMULATOR_ENTER();
    attempt([&] {
        const Place place = locate_own(address);
        const Range range{place.offset, bytes * elements};
        check_alignment(address, range.size);
        place.cta.shared.check_read(range);
        std::memcpy(to, place.cta.shared.at(range), range.size);
    });
}

void store_shared(u32 address, const void* from, u32 bytes, u32 elements) {
    EMULATOR_ENTER();
    attempt([&] {
        const Place place = locate_own(address);
        const Range range{place.offset, bytes * elements};
        check_alignment(address, range.size);
        place.cta.shared.check_write(range, writer());
        note_store(range);
        std::memcpy(place.cta.shared.at(range), from, range.size);
    });
}

// A lane's value holds elements 2 * (lane % 4) and the next one of row lane / 4 of each matrix; lane 8 * i + r has the
// address of row r of matrix i.
static void store_row(Warp& warp, u32 matrix, u32 row, bool is_transposed) {
    u16 elements[8];
    for (u32 column = 0; column < 8; ++column) {
        const u32 r = is_transposed ? column : row, c = is_transposed ? row : column;
        elements[column] = u16(warp.matrices[4 * r + c / 2][matrix] >> 16 * (c % 2));
    }
    const u32 lane = 8 * matrix + row;
    const Range range{locate_own(u32(warp.in[lane])).offset, 16};
    check_alignment(range.begin, 16);
    SharedMemory& shared = self().cta->shared;
    shared.check_write(range, {warp.threads[lane]->index, world.step});
    std::memcpy(shared.at(range), elements, 16);
}

void store_matrices(u32 address, const u32* values, u32 count, bool is_transposed) {
    EMULATOR_ENTER();
    attempt([&] {
        self().warp->in[self().lane] = address;
        std::copy(values, values + count, self().warp->matrices[self().lane]);
        meet("stmatrix", kWholeWarp, [&](Warp& warp) {
            for (u32 line = 0; line < 8 * count; ++line) store_row(warp, line / 8, line % 8, is_transposed);
        });
    });
}

constexpr u32 kMark = 1u << 31;  // of a watched load (dependencies.cpp) survives

namespace op {

void fence_proxy_async_shared_cta() {
    EMULATOR_ENTER();
    self().last_fence = world.step;
}

void fence_mbarrier_init_release_cluster() {
    EMULATOR_ENTER();
    self().last_fence = world.step;
}

void mapa_shared_cluster_u32(u32& remote, u32 address, u32 rank) {
    EMULATOR_ENTER();
    attempt([&] {
        if (rank >= self().cta->cluster->ctas.size()) throw "mapa: the cluster has no CTA " + std::to_string(rank);
        remote = (address & kMark) | rank << kRankShift | (address & ((1u << kRankShift) - 1));
    });
}

void st_async_shared_cluster_mbarrier_complete_tx_bytes_v4_f32(u32 address, float a, float b, float c, float d,
                                                               u32 barrier) {
    EMULATOR_ENTER();
    attempt([&] {
        const Place to = locate(address), at = locate(barrier);
        if (&to.cta != &at.cta) throw std::string("st.async: the barrier lies in another CTA than the data");
        check_alignment(address, 16);
        const Range range{to.offset, 16};
        to.cta.shared.begin_write(range);
        world.post([=, cta = &to.cta, offset = at.offset] {
            const float values[] = {a, b, c, d};
            std::memcpy(cta->shared.at(range), values, 16);
            complete_bytes({*cta, offset}, 16, range);
        });
    });
}

}  // namespace op

// cp.async of this thread: the copies of one group arrive at a barrier when all have landed.
static void copy_async(u32 destination, const void* source, u32 bytes) {
    const Place place = locate_own(destination);
    check_alignment(destination, bytes);
    const Range range{place.offset, bytes};
    check_refill(place.cta, range);
    place.cta.shared.begin_write(range);
    Thread& thread = self();
    if (!thread.copies) thread.copies = std::make_shared<Copies>();
    thread.copies->ranges.push_back(range);
    ++thread.copies->pending;
    world.post([=, cta = &place.cta, copies = thread.copies] {
        std::memcpy(cta->shared.at(range), source, bytes);
        if (--copies->pending == 0 && copies->arrive) copies->arrive();
    });
}

namespace op {

void cp_async_ca_shared_global(u32 destination, const void* source, u32 bytes) {
    EMULATOR_ENTER();
    attempt([&] { copy_async(destination, source, bytes); });
}

void cp_async_cg_shared_global(u32 destination, const void* source, u32 bytes) {
    EMULATOR_ENTER();
    attempt([&] { copy_async(destination, source, bytes); });
}

void cp_async_mbarrier_arrive_noinc_shared_cta_b64(u32 barrier) {
    EMULATOR_ENTER();
    world.let_lanes_catch_up();
    attempt([&] {
        const Place place = locate_own(barrier);
        find_barrier(place);
        std::shared_ptr<Copies> copies = self().copies ? self().copies : std::make_shared<Copies>();
        self().copies = nullptr;
        copies->arrive = [cta = &place.cta, offset = place.offset, ranges = copies->ranges] {
            std::vector<Range>& landed = find_barrier({*cta, offset}).landed;
            landed.insert(landed.end(), ranges.begin(), ranges.end());
            arrive({*cta, offset});
        };
        if (copies->pending == 0) world.post([copies] { copies->arrive(); });
    });
}

}  // namespace op
}  // namespace emulator
