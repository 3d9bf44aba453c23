// The PTX instructions that the emulator knows, by their opcode with '_' for '.' and '::' (translate.py): what the
// kernels' inline assembly calls. A new instruction is a function here. Arguments stand in the order in which the text
// of the instruction has its operands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "types.hpp"

namespace emulator {

struct Sink {};  // the operand `_`

u32 shuffle(u32 mask, u32 value, u32 from, const char* what);
u32 vote(u32 mask, bool is_true);
u32 reduce(u32 mask, u32 value, u32 (*combine)(u32, u32));
void meet_warp(u32 mask);
void meet_block();
u8* dynamic_shared();
void* static_shared(const void* key, size_t bytes);  // the CTA's memory for the variable that `key` stands for
u32 address_of_shared(const void* pointer);
u32 special_cluster_ctarank();
u32 zero_of_launch();

void load_shared(void* to, u32 address, u32 bytes, u32 elements);
void mark_loads(float* values, u32 elements, u32 address);  // dependencies.cpp
void store_shared(u32 address, const void* from, u32 bytes, u32 elements);
void store_matrices(u32 address, const u32* values, u32 count, bool is_transposed);

// Boxes of tensor maps. `mask`: the CTAs of the cluster that a load reaches; 0: this one.
void tma_load(u32 destination, const void* map, const u32* at, u32 rank, u32 barrier, u32 mask);
void tma_store(const void* map, const u32* at, u32 rank, u32 source, bool adds);
void bulk_wait(u32 pending, bool waits_for_reads_only);

// One WGMMA of this thread's registers `d`; `a` is a descriptor, or four registers.
void wgmma(float* const* d, u32 columns, u32 depth, const char* types, const u32* registers_a, u64 a, u64 b,
           bool accumulates, const int* immediates, u32 num_immediates);

namespace op {

// ---- barriers.cpp ----
void mbarrier_init_shared_cta_b64(u32 address, u32 arrivals);
void mbarrier_arrive_shared_cta_b64(Sink, u32 address);
void mbarrier_arrive_shared_cluster_b64(Sink, u32 address);
void mbarrier_arrive_expect_tx_shared_cta_b64(Sink, u32 address, u32 bytes);
void mbarrier_expect_tx_relaxed_cta_shared_cta_b64(u32 address, u32 bytes);
void mbarrier_try_wait_parity_shared_cta_b64(bool& is_done, u32 address, u32 parity);
void mbarrier_test_wait_parity_shared_cta_b64(bool& is_done, u32 address, u32 parity);
void bar_sync(u32 id, u32 threads);
void bar_arrive(u32 id, u32 threads);
void barrier_cluster_arrive_relaxed();
void barrier_cluster_wait_acquire();
void setmaxnreg_dec_sync_aligned_u32(u32 registers);
void setmaxnreg_inc_sync_aligned_u32(u32 registers);
void elect_sync(bool& is_elected, u32 mask);

// ---- memory.cpp ----
void fence_proxy_async_shared_cta();
void fence_mbarrier_init_release_cluster();
void mapa_shared_cluster_u32(u32& remote, u32 address, u32 rank);
void st_async_shared_cluster_mbarrier_complete_tx_bytes_v4_f32(u32 address, float a, float b, float c, float d,
                                                               u32 barrier);
void cp_async_ca_shared_global(u32 destination, const void* source, u32 bytes);
void cp_async_cg_shared_global(u32 destination, const void* source, u32 bytes);
void cp_async_mbarrier_arrive_noinc_shared_cta_b64(u32 barrier);

inline void ld_shared_f32(float& value, u32 address) {
    load_shared(&value, address, 4, 1);
    mark_loads(&value, 1, address);
}
inline void ld_shared_u32(u32& value, u32 address) { load_shared(&value, address, 4, 1); }
inline void ld_shared_u16(u16& value, u32 address) { load_shared(&value, address, 2, 1); }
template <class T>
void load_vector(u32 address, T& a, T& b) {
    T values[2];
    load_shared(values, address, sizeof(T), 2);
    if constexpr (std::is_same_v<T, float>) mark_loads(values, 2, address);
    a = values[0], b = values[1];
}
template <class T>
void load_vector(u32 address, T& a, T& b, T& c, T& d) {
    T values[4];
    load_shared(values, address, sizeof(T), 4);
    a = values[0], b = values[1], c = values[2], d = values[3];
}
inline void ld_shared_v2_f32(float& a, float& b, u32 address) { load_vector(address, a, b); }
inline void ld_shared_v2_u32(u32& a, u32& b, u32 address) { load_vector(address, a, b); }
inline void ld_shared_v4_f32(float& a, float& b, float& c, float& d, u32 address) { load_vector(address, a, b, c, d); }
inline void ld_shared_v4_u32(u32& a, u32& b, u32& c, u32& d, u32 address) { load_vector(address, a, b, c, d); }

template <class T, class... Values>
void store_vector(u32 address, T first, Values... others) {
    const T values[] = {first, others...};
    store_shared(address, values, sizeof(T), 1 + sizeof...(others));
}
inline void st_shared_f32(u32 address, float a) { store_vector(address, a); }
inline void st_shared_u32(u32 address, u32 a) { store_vector(address, a); }
inline void st_shared_v2_f32(u32 address, float a, float b) { store_vector(address, a, b); }
inline void st_shared_v2_u32(u32 address, u32 a, u32 b) { store_vector(address, a, b); }
inline void st_shared_v4_f32(u32 address, float a, float b, float c, float d) { store_vector(address, a, b, c, d); }
inline void st_shared_v4_u32(u32 address, u32 a, u32 b, u32 c, u32 d) { store_vector(address, a, b, c, d); }

inline void store_matrices_2(u32 address, u32 a, u32 b, bool is_transposed) {
    const u32 values[] = {a, b};
    store_matrices(address, values, 2, is_transposed);
}
inline void store_matrices_4(u32 address, u32 a, u32 b, u32 c, u32 d, bool is_transposed) {
    const u32 values[] = {a, b, c, d};
    store_matrices(address, values, 4, is_transposed);
}
inline void stmatrix_sync_aligned_m8n8_x2_shared_b16(u32 address, u32 a, u32 b) {
    store_matrices_2(address, a, b, false);
}
inline void stmatrix_sync_aligned_m8n8_x4_shared_b16(u32 address, u32 a, u32 b, u32 c, u32 d) {
    store_matrices_4(address, a, b, c, d, false);
}
inline void stmatrix_sync_aligned_m8n8_x2_trans_shared_b16(u32 address, u32 a, u32 b) {
    store_matrices_2(address, a, b, true);
}
inline void stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(u32 address, u32 a, u32 b, u32 c, u32 d) {
    store_matrices_4(address, a, b, c, d, true);
}

// ---- global memory: ordinary host memory ----
inline void ld_global_nc_L1_no_allocate_v4_u32(u32& a, u32& b, u32& c, u32& d, const void* address) {
    u32 values[4];
    std::memcpy(values, address, 16);
    a = values[0], b = values[1], c = values[2], d = values[3];
}
inline void ld_global_nc_s32(int& value, const void* address) { std::memcpy(&value, address, 4); }
inline void st_global_f32(void* address, float value) { std::memcpy(address, &value, 4); }
inline void st_global_u16(void* address, u16 value) { std::memcpy(address, &value, 2); }
inline void st_global_v4_u32(void* address, u32 a, u32 b, u32 c, u32 d) {
    const u32 values[] = {a, b, c, d};
    std::memcpy(address, values, 16);
}
inline void prefetch_global_L2(const void*) {}
inline void prefetch_tensormap(const void*) {}
// Stands for the evict-first policy, the only one that kernels create. A load with another value ran before that.
constexpr u64 kEvictFirst = 0x1234567890abcdef;
void check_policy(u64 policy);  // tma.cpp
inline void createpolicy_fractional_L2_evict_first_b64(unsigned long long& policy, double) { policy = kEvictFirst; }
inline void griddepcontrol_wait() {}
inline void griddepcontrol_launch_dependents() {}

// ---- signals.cpp ----
void red_release_gpu_global_add_u32(u32* address, u32 value);

// ---- tma.cpp ----
inline void cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes(u32 to, const void* map, u32 x,
                                                                                     u32 y, u32 barrier) {
    const u32 at[] = {x, y};
    tma_load(to, map, at, 2, barrier, 0);
}
inline void cp_async_bulk_tensor_3d_shared_cluster_global_mbarrier_complete_tx_bytes(u32 to, const void* map, u32 x,
                                                                                     u32 y, u32 z, u32 barrier) {
    const u32 at[] = {x, y, z};
    tma_load(to, map, at, 3, barrier, 0);
}
inline void cp_async_bulk_tensor_4d_shared_cluster_global_mbarrier_complete_tx_bytes(u32 to, const void* map, u32 x,
                                                                                     u32 y, u32 z, u32 w, u32 barrier) {
    const u32 at[] = {x, y, z, w};
    tma_load(to, map, at, 4, barrier, 0);
}
inline void cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(
    u32 to, const void* map, u32 x, u32 y, u32 barrier, u16 mask) {
    const u32 at[] = {x, y};
    tma_load(to, map, at, 2, barrier, mask);
}
inline void cp_async_bulk_tensor_3d_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(
    u32 to, const void* map, u32 x, u32 y, u32 z, u32 barrier, u16 mask) {
    const u32 at[] = {x, y, z};
    tma_load(to, map, at, 3, barrier, mask);
}
inline void cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes_L2_cache_hint(
    u32 to, const void* map, u32 x, u32 y, u32 barrier, u64 policy) {
    check_policy(policy);
    const u32 at[] = {x, y};
    tma_load(to, map, at, 2, barrier, 0);
}
inline void cp_async_bulk_tensor_3d_shared_cluster_global_mbarrier_complete_tx_bytes_L2_cache_hint(
    u32 to, const void* map, u32 x, u32 y, u32 z, u32 barrier, u64 policy) {
    check_policy(policy);
    const u32 at[] = {x, y, z};
    tma_load(to, map, at, 3, barrier, 0);
}
inline void cp_async_bulk_tensor_2d_global_shared_cta_bulk_group(const void* map, u32 x, u32 y, u32 source) {
    const u32 at[] = {x, y};
    tma_store(map, at, 2, source, false);
}
inline void cp_async_bulk_tensor_3d_global_shared_cta_bulk_group(const void* map, u32 x, u32 y, u32 z, u32 source) {
    const u32 at[] = {x, y, z};
    tma_store(map, at, 3, source, false);
}
inline void cp_reduce_async_bulk_tensor_2d_global_shared_cta_add_bulk_group(const void* map, u32 x, u32 y, u32 source) {
    const u32 at[] = {x, y};
    tma_store(map, at, 2, source, true);
}
inline void cp_reduce_async_bulk_tensor_3d_global_shared_cta_add_bulk_group(const void* map, u32 x, u32 y, u32 z,
                                                                            u32 source) {
    const u32 at[] = {x, y, z};
    tma_store(map, at, 3, source, true);
}
void cp_async_bulk_commit_group();
inline void cp_async_bulk_wait_group_read(u32 pending) { bulk_wait(pending, true); }
inline void cp_async_bulk_wait_group(u32 pending) { bulk_wait(pending, false); }
void tensormap_replace_tile_global_address_global_b1024_b64(void* map, const void* address);
void tensormap_replace_tile_global_dim_global_b1024_b32(void* map, u32 dim, u32 size);
void tensormap_replace_tile_global_stride_global_b1024_b64(void* map, u32 dim, u64 stride);
inline void fence_proxy_tensormap_generic_release_gpu() {}
inline void fence_proxy_tensormap_generic_acquire_gpu(const void*, u32) {}

// ---- wgmma.cpp ----
void wgmma_fence_sync_aligned();
void wgmma_commit_group_sync_aligned();
void wgmma_wait_group_sync_aligned(u32 pending);

// ---- warp.cpp ----
// Every lane gives its fragments of A and B and gets its part of D = A . B + C.
void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1,
                                                         u32 a2, u32 a3, u32 b0, u32 b1, float c0, float c1, float c2,
                                                         float c3);

// ---- arithmetic and moves ----
template <class T>
void mov_u32(T& to, u32 value) {
    to = value;
}
inline void selp_u32(u32& to, u32 a, u32 b, bool condition) { to = condition ? a : b; }
inline void setp_ne_u32(bool& to, u32 a, u32 b) { to = a != b; }
inline void setp_ne_b32(bool& to, u32 a, u32 b) { to = a != b; }
inline void mul_rn_f32(float& to, float a, float b) { to = a * b; }

inline u32 round_to_bf16(float value) {
    u32 bits;
    std::memcpy(&bits, &value, 4);
    if (value != value) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline void cvt_rn_bf16x2_f32(u32& to, float high, float low) { to = round_to_bf16(high) << 16 | round_to_bf16(low); }
inline void cvt_f32_f16(float& to, u16 bits) { to = float(__builtin_bit_cast(_Float16, bits)); }

// Of the casts to FP8, which do not run here: declared alone, because kernels that do include their header.
void max_u16x2(u32& to, u32 a, u32 b);
void max_NaN_f32(float& to, float a, float b);
void rcp_approx_ftz_f32(float& to, float value);
void ex2_approx_ftz_f32(float& to, float value);
void cvt_rn_satfinite_e4m3x2_f32(u16& to, float high, float low);

}  // namespace op
}  // namespace emulator
