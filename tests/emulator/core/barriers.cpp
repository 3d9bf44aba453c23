// mbarrier, named barriers, the barrier of a cluster, and setmaxnreg.
#include "instruction.hpp"
#include "instructions.hpp"

namespace emulator {

Barrier& find_barrier(const Place& place) {
    const auto found = place.cta.barriers.find(place.offset);
    if (found == place.cta.barriers.end())
        throw SharedMemory::describe("no barrier has been initialised here", {place.offset, 8});
    return found->second;
}

static void end_phase_if_complete(const Place& place, Barrier& barrier) {
    if (barrier.pending > 0 || barrier.bytes != 0) return;
    ++barrier.phase;
    barrier.pending = barrier.expected;
    for (const Range& range : barrier.landed) place.cta.shared.end_write(range);
    barrier.landed.clear();
    world.wake(barrier.waiters);
}

void arrive(const Place& place) {
    if (place.cta.live == 0) throw std::string("an arrival at a barrier of a CTA that has ended");
    Barrier& barrier = find_barrier(place);
    if (barrier.pending == 0)
        throw SharedMemory::describe("more arrivals than the barrier expects in a phase", {place.offset, 8});
    --barrier.pending;
    end_phase_if_complete(place, barrier);
}

void complete_bytes(const Place& place, u32 bytes, Range landed) {
    if (place.cta.live == 0) throw std::string("bytes completed at a barrier of a CTA that has ended");
    Barrier& barrier = find_barrier(place);
    barrier.bytes -= bytes;
    if (landed.size > 0) barrier.landed.push_back(landed);
    end_phase_if_complete(place, barrier);
}

static std::string describe(const Place& place, u32 parity) {
    const Barrier& barrier = find_barrier(place);
    return SharedMemory::describe("the barrier", {place.offset, 8}) + ", parity " + std::to_string(parity) +
           " (phase " + std::to_string(barrier.phase) + ", " + std::to_string(barrier.pending) + " of " +
           std::to_string(barrier.expected) + " arrivals and " + std::to_string(barrier.bytes) + " bytes pending)";
}

// A phase has the parity of its number; the one before the first counts as completed.
static bool is_complete(const Place& place, u32 parity) { return (find_barrier(place).phase & 1) != parity; }

static void meet_at(Meeting& meeting, u32 threads, bool waits, const std::string& what) {
    if (threads == 0 || threads % 32 != 0) throw what + ": " + std::to_string(threads) + " threads are no whole warps";
    if (meeting.arrived == 0) meeting.threads = threads;
    if (meeting.threads != threads)
        throw what + ": one thread counts " + std::to_string(threads) + " threads, another " +
            std::to_string(meeting.threads);
    if (++meeting.arrived == threads) {
        meeting.arrived = 0;
        ++meeting.turn;
        world.wake(meeting.waiters);
        return;
    }
    const u64 turn = meeting.turn;
    while (waits && meeting.turn == turn)
        world.wait(meeting.waiters, what + " of " + std::to_string(threads) + " threads");
}

static Meeting& named(u32 id) {
    if (id >= 16) throw "there is no named barrier " + std::to_string(id);
    return self().cta->named[id];
}

static std::string name_of(u32 id) { return "named barrier " + std::to_string(id); }

static void take_registers(Warp& warp, u32 registers) {
    Cta& cta = *self().cta;
    while (warp.registers < registers) {
        const u32 more = (registers - warp.registers) * 32;
        if (cta.free_registers >= more) {
            cta.free_registers -= more;
            warp.registers = registers;
            world.wake(cta.register_waiters);
        } else {
            world.wait(cta.register_waiters, "registers: " + std::to_string(more) + " for its warp, " +
                                                 std::to_string(cta.free_registers) + " are free");
        }
    }
}

static void check_registers(u32 registers) {
    if (registers % 8 != 0 || registers < 24 || registers > 256)
        throw "setmaxnreg: " + std::to_string(registers) + " registers";
}

void meet_block() {
    EMULATOR_ENTER();
    attempt([&] { meet_at(named(0), world.launch().threads, true, "__syncthreads"); });
}

namespace op {

void mbarrier_init_shared_cta_b64(u32 address, u32 arrivals) {
    EMULATOR_ENTER();
    attempt([&] {
        const Place place = locate_own(address);
        if (arrivals == 0 || place.offset % 8 != 0 || place.cta.barriers.contains(place.offset))
            throw SharedMemory::describe("mbarrier.init: no arrivals, an odd address, or a barrier already",
                                         {place.offset, 8});
        place.cta.shared.check_write({place.offset, 8}, writer());
        place.cta.shared.set_barrier({place.offset, 8});
        Barrier& barrier = place.cta.barriers[place.offset];
        barrier.expected = barrier.pending = arrivals;
    });
}

void mbarrier_arrive_shared_cta_b64(Sink, u32 address) {
    EMULATOR_ENTER();
    world.let_lanes_catch_up();
    attempt([&] { arrive(locate_own(note_arrival(address))); });
}

void mbarrier_arrive_shared_cluster_b64(Sink, u32 address) {
    EMULATOR_ENTER();
    world.let_lanes_catch_up();
    attempt([&] { arrive(locate(note_arrival(address))); });
}

void mbarrier_arrive_expect_tx_shared_cta_b64(Sink, u32 address, u32 bytes) {
    EMULATOR_ENTER();
    attempt([&] {
        const Place place = locate_own(address);
        find_barrier(place).bytes += bytes;
        arrive(place);
    });
}

void mbarrier_expect_tx_relaxed_cta_shared_cta_b64(u32 address, u32 bytes) {
    EMULATOR_ENTER();
    attempt([&] { find_barrier(locate_own(address)).bytes += bytes; });
}

void mbarrier_try_wait_parity_shared_cta_b64(bool& is_done, u32 address, u32 parity) {
    EMULATOR_ENTER();
    attempt([&] {
        const Place place = locate_own(address);
        if (parity > 1) throw "mbarrier.try_wait: parity " + std::to_string(parity);
        while (!is_complete(place, parity)) {
            world.wait(find_barrier(place).waiters, describe(place, parity));
            if (world.launch().is_converged) break;  // no lane misses what another has seen
        }
        self().last_barrier = place.offset;
        is_done = true;
    });
}

void mbarrier_test_wait_parity_shared_cta_b64(bool& is_done, u32 address, u32 parity) {
    EMULATOR_ENTER();
    attempt([&] {
        const Place place = locate_own(address);
        is_done = is_complete(place, parity);
        if (is_done) self().last_barrier = place.offset;
    });
}

void bar_sync(u32 id, u32 threads) {
    EMULATOR_ENTER();
    attempt([&] { meet_at(named(id), threads, true, name_of(id)); });
}

void bar_arrive(u32 id, u32 threads) {
    EMULATOR_ENTER();
    attempt([&] { meet_at(named(id), threads, false, name_of(id)); });
}

static void arrive_at_cluster() {
    Thread& thread = self();
    Meeting& meeting = thread.cta->cluster->meeting;
    if (thread.has_cluster_arrived) throw std::string("barrier.cluster.arrive twice without a wait");
    thread.has_cluster_arrived = true, thread.cluster_turn = meeting.turn;
    if (++meeting.arrived < thread.cta->cluster->live) return;
    meeting.arrived = 0;
    ++meeting.turn;
    world.wake(meeting.waiters);
}

void barrier_cluster_arrive_relaxed() {
    EMULATOR_ENTER();
    attempt(&arrive_at_cluster);
}

void barrier_cluster_wait_acquire() {
    EMULATOR_ENTER();
    attempt([&] {
        Thread& thread = self();
        Meeting& meeting = thread.cta->cluster->meeting;
        if (!thread.has_cluster_arrived) throw std::string("barrier.cluster.wait without an arrival");
        while (meeting.turn == thread.cluster_turn)
            world.wait(meeting.waiters, "the cluster: " + std::to_string(meeting.arrived) + " of " +
                                            std::to_string(thread.cta->cluster->live) + " threads have arrived");
        thread.has_cluster_arrived = false;
    });
}

void setmaxnreg_dec_sync_aligned_u32(u32 registers) {
    EMULATOR_ENTER();
    attempt([&] {
        check_registers(registers);
        meet("setmaxnreg", kWholeWarp, [&](Warp& warp) {
            if (registers > warp.registers)
                throw "setmaxnreg.dec to " + std::to_string(registers) + " from " + std::to_string(warp.registers);
            Cta& cta = *self().cta;
            cta.free_registers += (warp.registers - registers) * 32;
            warp.registers = registers;
            world.wake(cta.register_waiters);
        });
    });
}

void setmaxnreg_inc_sync_aligned_u32(u32 registers) {
    EMULATOR_ENTER();
    attempt([&] {
        check_registers(registers);
        meet("setmaxnreg", kWholeWarp, [&](Warp& warp) {
            if (registers < warp.registers)
                throw "setmaxnreg.inc to " + std::to_string(registers) + " from " + std::to_string(warp.registers);
        });
        take_registers(*self().warp, registers);
    });
}

}  // namespace op
}  // namespace emulator
