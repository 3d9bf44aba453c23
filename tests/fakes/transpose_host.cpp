// Runs the transposing pass on the CPU: KERNEL is the file with its source, a thread stands for each thread of a block,
// blocks run in turn.
#include <barrier>
#include <bit>
#include <cstdint>
#include <cstring>
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
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

static thread_local Index threadIdx, blockIdx;
static Index gridDim;
static std::barrier<>* block_barrier;

static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

static void __syncthreads() { block_barrier->arrive_and_wait(); }

// Byte i of the result is byte `selector` >> 4i of the eight in (b, a).
static unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    static_assert(std::endian::native == std::endian::little);
    const uint64_t bytes = uint64_t(b) << 32 | a;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; ++i) result |= unsigned(bytes >> (selector >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
    return result;
}

#include KERNEL

// Launch the kernel on `grid` blocks.
extern "C" void launch(unsigned grid, const unsigned char* in, unsigned char* out, long long in_pitch,
                       long long out_pitch, unsigned rows, unsigned columns) {
    constexpr unsigned kThreads = deep_gemm::TransposeFp8::kThreads;
    std::barrier<> barrier(kThreads);
    block_barrier = &barrier;
    gridDim = {grid, 1, 1};
    std::vector<std::thread> threads;
    for (unsigned index = 0; index < kThreads; ++index)
        threads.emplace_back([=] {
            threadIdx = {index, 0, 0};
            for (unsigned block = 0; block < grid; ++block) {
                blockIdx = {block, 0, 0};
                __syncthreads();  // blocks have the shared memory one after the other
                deep_gemm_transpose_fp8(in, out, in_pitch, out_pitch, rows, columns);
            }
        });
    for (std::thread& thread : threads) thread.join();
}
