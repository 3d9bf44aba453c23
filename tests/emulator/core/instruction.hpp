// What the implementation of every instruction begins with.
#pragma once

#include <cstring>
#include <string>
#include <utility>

#include "world.hpp"

namespace emulator {

// A thread is at an instruction of the kernel: the caller's caller. Only where the function is not inlined.
#define EMULATOR_ENTER() ::emulator::world.enter(__builtin_return_address(0))

// Run `work` of the current thread; a std::string that it throws ends the launch.
template <class Work>
void attempt(Work work) {
    std::string failure;
    try {
        work();
        return;
    } catch (std::string& text) {
        failure = std::move(text);
    }
    world.fail(failure);
}

// A shared address: the CTA's rank in its cluster above 24 bits of offset.
constexpr u32 kRankShift = 24;

struct Place {
    Cta& cta;
    u32 offset;
};

inline u32 shared_address_of(const Cta& cta, u32 offset) { return cta.rank << kRankShift | offset; }

inline Place locate(u32 address) {
    Cluster& cluster = *self().cta->cluster;
    const u32 rank = address >> kRankShift, offset = address & ((1u << kRankShift) - 1);
    if (rank >= cluster.ctas.size()) throw "shared address " + std::to_string(address) + " is of no CTA of the cluster";
    return {*cluster.ctas[rank], offset};
}

// As locate, for what only reaches the own CTA.
inline Place locate_own(u32 address) {
    const Place place = locate(address);
    if (&place.cta != self().cta) throw std::string("a shared address of another CTA where one of this CTA is needed");
    return place;
}

inline Writer writer() { return {self().index, world.step}; }

// All lanes of `mask` meet; the last one runs `last`.
template <class Last>
void meet(const char* what, u32 mask, Last last) {
    Thread& thread = self();
    Warp& warp = *thread.warp;
    if (!(mask >> thread.lane & 1)) throw std::string(what) + ": the mask leaves out the calling lane";
    if (warp.arrived == 0) warp.meeting = what, warp.mask = mask;
    if (std::strcmp(warp.meeting, what) != 0 || warp.mask != mask)
        throw "lanes of a warp diverge: one is at " + std::string(what) + ", another at " + warp.meeting;
    warp.arrived |= 1u << thread.lane;
    if (warp.arrived == mask) {
        warp.arrived = 0;
        ++warp.turn;
        last(warp);
        world.wake(warp.waiters);
        return;
    }
    const u64 turn = warp.turn;
    while (warp.turn == turn) world.wait(warp.waiters, std::string("the other lanes of its warp at ") + what);
}

constexpr u32 kWholeWarp = 0xffffffff;

// mbarrier (barriers.cpp), also from asynchronous operations.
Barrier& find_barrier(const Place& place);
void arrive(const Place& place);
void complete_bytes(const Place& place, u32 bytes, Range landed);

// Throws where an ordinary store to the range has been followed by no fence.proxy.async, neither by who stored nor by
// the current thread.
void check_fenced(Cta& cta, Range range, const std::string& reader);

// Watched loads (dependencies.cpp): the address of an arrival without its mark; a store of this thread; a refill of
// memory by it.
u32 note_arrival(u32 address);
void note_store(Range range);
void check_refill(Cta& cta, Range range);

}  // namespace emulator
