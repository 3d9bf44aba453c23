// How the roles of a CTA come to its tiles. Every role walks over all of them, each at its own pace:
//
//     for (Tile tile = walk.first(); tile.is_valid(); tile = walk.next()) ...
//
// and may ask for the current one again with `again`, where it has no registers to keep it.
//
// Dense: every role computes the tiles itself, which takes some ten instructions. Grouped: one warp does (the finder,
// or the loading warp where all others copy scales) and hands them over in a queue (tile_queue.cuh).
#pragma once

#include "deep_gemm/sm90/scheduler/tile_queue.cuh"

namespace deep_gemm {

template <class Scheduler>
struct OwnWalk {
    Scheduler tile;

    __device__ __forceinline__ Tile first() const { return tile; }
    __device__ __forceinline__ Tile again() const { return tile; }
    __device__ __forceinline__ Tile next() {
        tile.advance();
        return tile;
    }
};

// Takes the tiles of a queue; an entry is given back when the next one is asked for.
template <class Config>
struct QueueWalk {
    TileQueue<Config> queue;
    Ring<TileQueue<Config>::kDepth> places;

    __device__ __forceinline__ Tile first() const {
        queue.wait(places);
        return queue.read(places);
    }
    __device__ __forceinline__ Tile again() const { return queue.read(places); }
    __device__ __forceinline__ Tile next() {
        queue.release(places);
        return first();
    }
};

// Finds tiles and puts them into the queue. The last one that it hands over says that there are no more.
template <class Config, class Scheduler>
struct FindingWalk {
    TileQueue<Config> queue;
    Scheduler found;
    Ring<TileQueue<Config>::kDepth> places;

    __device__ __forceinline__ Tile first() {
        queue.put(places, found);
        return found;
    }
    __device__ __forceinline__ Tile next() {
        found.advance();
        return first();
    }
};

// The walks of a kernel; `first` is the CTA's first tile.
template <class Config, class Scheduler, bool kIsGrouped = Scheduler::kIsGrouped>
struct TileWalks {
    static constexpr bool kHasFinder = false;
    Scheduler first;

    __device__ __forceinline__ TileWalks(const Scheduler& first, u32) : first(first) {}

    __device__ __forceinline__ OwnWalk<Scheduler> walk() const { return {first}; }
    __device__ __forceinline__ OwnWalk<Scheduler> loading_walk() const { return {first}; }
    __device__ __forceinline__ void find() const {}
    __device__ __forceinline__ static void initialise_barriers(u32) {}
};

template <class Config, class Scheduler>
struct TileWalks<Config, Scheduler, true> {
    using Queue = TileQueue<Config>;
    using Finding = FindingWalk<Config, Scheduler>;
    static constexpr bool kHasFinder = Queue::kHasFinder;
    Scheduler first;
    Queue queue;

    __device__ __forceinline__ TileWalks(const Scheduler& first, u32 shared) : first(first), queue{place(shared)} {}

    __device__ __forceinline__ QueueWalk<Config> walk() const { return {queue, {}}; }
    __device__ __forceinline__ typename Choose<kHasFinder, QueueWalk<Config>, Finding>::Type loading_walk() const {
        if constexpr (kHasFinder) {
            return {queue, {}};
        } else {
            return {queue, first, {}};
        }
    }
    __device__ __forceinline__ void find() const {
        Finding walk{queue, first, {}};
#pragma unroll 1
        for (Tile tile = walk.first(); tile.is_valid(); tile = walk.next()) {}
    }

    // By one thread, before the CTA meets. The queue lies behind what gemm_layout.cuh describes.
    __device__ __forceinline__ static u32 place(u32 shared) { return shared + GemmLayout<Config>::kSharedBytes - 1024; }
    __device__ __forceinline__ static void initialise_barriers(u32 shared) {
        Queue{place(shared)}.initialise_barriers();
    }
};

}  // namespace deep_gemm
