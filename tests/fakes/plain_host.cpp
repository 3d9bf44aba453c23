// Runs a plain kernel on the CPU: KERNEL is the file with its source, CALL its call on arguments a[0], a[1] ...
// A thread stands for each thread of a block, blocks run in turn. Warps meet at every shuffle.
#include <atomic>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

struct Index {
    unsigned x, y, z;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

static thread_local Index threadIdx, blockIdx;
static Index gridDim;
static std::barrier<>* block_barrier;
static std::vector<std::unique_ptr<std::barrier<>>> warp_barriers;
static unsigned exchanged[1024];
static int votes[1024];

static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}
static inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fmaf_rd(float a, float b, float c) {
    const double sum = double(a) * b + c;
    return double(float(sum)) > sum ? std::nextafter(float(sum), -INFINITY) : float(sum);
}
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
// Byte i of the result is byte `selector` >> 4i of the eight in (b, a).
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    static_assert(std::endian::native == std::endian::little);
    const uint64_t bytes = uint64_t(b) << 32 | a;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; ++i) result |= unsigned(bytes >> (selector >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
    return result;
}
static inline uint4 __ldcs(const uint4* address) { return *address; }
static inline void __syncthreads() { block_barrier->arrive_and_wait(); }

static inline int __syncthreads_or(int vote) {
    votes[threadIdx.x] = vote;
    __syncthreads();
    int any = 0;
    for (int other : votes) any |= other;
    __syncthreads();
    return any;
}

static inline unsigned __shfl_xor_sync(unsigned, unsigned value, unsigned lanes) {
    std::barrier<>& warp = *warp_barriers[threadIdx.x / 32];
    exchanged[threadIdx.x] = value;
    warp.arrive_and_wait();
    const unsigned other = exchanged[threadIdx.x ^ lanes];
    warp.arrive_and_wait();
    return other;
}

static std::atomic<unsigned> early_starts;

#include KERNEL

// Launch on grid[0] x grid[1] x grid[2] blocks; returns how many of their threads let kernels behind this one start.
extern "C" unsigned launch(const unsigned* grid, unsigned threads, const long long* a) {
    early_starts = 0;
    std::barrier<> barrier(threads);
    block_barrier = &barrier;
    warp_barriers.clear();
    for (unsigned warp = 0; warp < threads / 32; ++warp) warp_barriers.push_back(std::make_unique<std::barrier<>>(32));
    memset(votes, 0, sizeof votes);
    gridDim = {grid[0], grid[1], grid[2]};
    std::vector<std::thread> running;
    for (unsigned index = 0; index < threads; ++index)
        running.emplace_back([=] {
            threadIdx = {index, 0, 0};
            for (unsigned block = 0; block < grid[0] * grid[1] * grid[2]; ++block) {
                blockIdx = {block % grid[0], block / grid[0] % grid[1], block / grid[0] / grid[1]};
                __syncthreads();  // blocks have the shared memory one after the other
                CALL;
            }
        });
    for (std::thread& thread : running) thread.join();
    return early_starts;
}
