// One instruction a function. The PTX ISA section that each follows stands beside it.
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {
namespace ptx {

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// %cluster_ctarank: this CTA's rank in its cluster.
__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// barrier.cluster (PTX ISA, "barrier.cluster"): all threads of all CTAs of the cluster meet. Relaxed: an arrival orders
// nothing but what a fence before it orders (fence_barrier_init below). With .release every thread waits until all
// memory accesses of its SM so far are done, loads by TMA included (docs/kernels.md, "What bounds the kernels").
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// elect.sync: true in one lane of a converged warp. The compiler knows that one lane only runs what it guards, and
// keeps the operands of TMA in uniform registers; with a lane test it loops over the lanes' values instead.
__device__ __forceinline__ bool elect_one() {
    u32 elected;
    asm volatile(
        "{\n"
        ".reg .pred chosen;\n"
        "elect.sync _|chosen, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, chosen;\n"
        "}\n"
        : "=r"(elected));
    return elected != 0;
}

// bar.sync: `threads` threads meet at named barrier `id`.
__device__ __forceinline__ void named_barrier(u32 id, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// setmaxnreg: move registers between warpgroups.
template <u32 kRegisters>
__device__ __forceinline__ void increase_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <u32 kRegisters>
__device__ __forceinline__ void decrease_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// mbarrier.init
__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// fence.mbarrier_init: makes initialised barriers visible to the cluster (and so to remote arrivals).
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// fence.proxy.async: ordinary writes to shared memory before it are seen by TMA and WGMMA after it.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// mbarrier.arrive.expect_tx: one arrival, and `bytes` that TMA will complete.
__device__ __forceinline__ void barrier_arrive_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// mbarrier.arrive on this CTA's barrier.
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The same where `arrives` is not 0, without a branch, behind which the compiler would let the lanes of a warp meet
// again.
__device__ __forceinline__ void barrier_arrive_if(u32 barrier, u32 arrives) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.u32 p, %1, 0;\n"
        "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n"
        "}\n" ::"r"(barrier), "r"(arrives) : "memory");
}

// mapa + mbarrier.arrive on the barrier at the same offset in CTA `rank` of the cluster. Without .release.cluster: what
// the arrival orders are WGMMA reads, which wgmma.wait_group has completed; a cluster-wide release would flush every
// ordinary access.
__device__ __forceinline__ void barrier_arrive_remote(u32 barrier, u32 rank) {
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
        "}\n" ::"r"(barrier), "r"(rank) : "memory");
}

// mbarrier.try_wait.parity, repeated: returns once the phase of `parity` has completed.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "WAIT:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra WAIT;\n"
        "}\n" ::"r"(barrier), "r"(parity) : "memory");
}

// mbarrier.test_wait.parity: whether the phase of `parity` has completed; never waits.
__device__ __forceinline__ bool barrier_test(u32 barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}

// prefetch.tensormap
__device__ __forceinline__ void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// cp.async.bulk.tensor.2d, global to shared: a box at column x, row y; completes on `barrier`.
__device__ __forceinline__ void tma_load(const TensorMap* map, u32 barrier, u32 destination, u32 x, u32 y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];"
                 ::"r"(destination), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");
}

// The same with .multicast::cluster: the box lands at the same offset in every CTA whose bit is set in `mask`, and
// completes on the barrier at the same offset there.
__device__ __forceinline__ void tma_load_multicast(const TensorMap* map, u32 barrier, u32 destination, u32 x, u32 y,
                                                   u16 mask) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4}], [%2], %5;"
        ::"r"(destination), "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(mask) : "memory");
}

// cp.async.bulk.tensor.2d, shared to global: rows and columns beyond the tensor are not written.
__device__ __forceinline__ void tma_store(const TensorMap* map, u32 source, u32 x, u32 y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(source),
                 "r"(x), "r"(y) : "memory");
}

// cp.reduce.async.bulk.tensor.2d .add, shared to global: the same, added in memory.
__device__ __forceinline__ void tma_add(const TensorMap* map, u32 source, u32 x, u32 y) {
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(source), "r"(x), "r"(y) : "memory");
}

// cp.async.bulk.commit_group / wait_group.read: the stores so far form a group; wait until all groups but the last
// kPending have read their source.
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <u32 kPending>
__device__ __forceinline__ void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// cp.async: copy 4 bytes from global to shared memory. cp.async.mbarrier.arrive.noinc: one of the barrier's expected
// arrivals happens when all copies of this thread so far have landed.
__device__ __forceinline__ void copy_4(u32 destination, const float* source) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(destination), "l"(source) : "memory");
}
__device__ __forceinline__ void copy_arrive(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// ld.shared
__device__ __forceinline__ float load_shared(u32 address) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}

__device__ __forceinline__ u16 load_shared_u16(u32 address) {
    u16 value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
    return value;
}

__device__ __forceinline__ void load_shared_2(float& a, float& b, u32 address) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "r"(address) : "memory");
}

__device__ __forceinline__ void load_shared_4(float (&value)[4], u32 address) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]),
                 "=f"(value[3]) : "r"(address) : "memory");
}

// st.shared
__device__ __forceinline__ void store_shared(u32 address, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ void store_shared_2(u32 address, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(a), "f"(b) : "memory");
}
__device__ __forceinline__ void store_shared_4(u32 address, const float* value) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value[0]), "f"(value[1]), "f"(value[2]),
                 "f"(value[3]) : "memory");
}

// mapa: the address in CTA `rank` of the cluster of what lies at `address` here.
__device__ __forceinline__ u32 map_to_rank(u32 address, u32 rank) {
    u32 remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}

// st.async .v4: store 16 bytes into a CTA of the cluster; completes 16 bytes on that CTA's barrier, which so orders the
// data.
__device__ __forceinline__ void store_async_4(u32 remote, u32 remote_barrier, const float* value) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(remote), "f"(value[0]), "f"(value[1]),
                 "f"(value[2]), "f"(value[3]), "r"(remote_barrier) : "memory");
}

// griddepcontrol: wait until the kernels that this one depends on have completed; let dependent kernels be scheduled.
// Without a programmatic dependency both do nothing.
__device__ __forceinline__ void wait_for_dependencies() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// mul.rn.f32 that stays where it is written: a product that the compiler moves up would wait for its operands between
// two WGMMAs.
__device__ __forceinline__ float multiply_here(float a, float b) {
    float product;
    asm volatile("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
}

// wgmma.fence, wgmma.commit_group, wgmma.wait_group
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <u32 kPending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// cvt.rn.bf16x2.f32: round two floats to nearest even; `low` goes to the lower half.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// stmatrix .x2 / .x4: store two or four 8x8 matrices of 16-bit elements, one row address a lane.
__device__ __forceinline__ void store_matrix_x2(u32 address, u32 a, u32 b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}
__device__ __forceinline__ void store_matrix_x4(u32 address, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
                 "r"(c), "r"(d) : "memory");
}

// The same with .trans: each 8x8 matrix is stored transposed.
__device__ __forceinline__ void store_matrix_x2_transposed(u32 address, u32 a, u32 b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b)
                 : "memory");
}
__device__ __forceinline__ void store_matrix_x4_transposed(u32 address, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a),
                 "r"(b), "r"(c), "r"(d) : "memory");
}

}  // namespace ptx
}  // namespace deep_gemm
