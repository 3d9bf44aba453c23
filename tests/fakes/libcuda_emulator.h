// The stub driver's way to the emulator (tests/emulator): a "cubin" that reads "EMULATE <path>" is a kernel compiled
// for the host, whose launches really run, on host memory.
//
//   FAKE_CUDA_SEED            of the emulator's scheduler (0)
//   FAKE_CUDA_CONVERGED       set: lanes of a warp do not overtake each other at arrivals (unset)
//   FAKE_CUDA_DEPENDENCIES    set: loads that no arrival waits for are looked for; results mean nothing (unset)
//   FAKE_CUDA_EMULATES        1: fills of memory take place, too (0)
#pragma once

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../emulator/core/tensor_map.h"

enum { EMULATION_FAILED = 719 };  // CUDA_ERROR_LAUNCH_FAILED

typedef const char* (*Emulate)(void (*kernel)(void**), void** parameters, const unsigned* grid, unsigned threads,
                               unsigned shared_bytes, unsigned cluster, unsigned long long seed, unsigned modes);
typedef struct {
    void (*kernel)(void**);
    Emulate emulate;
    unsigned cluster;  // CTAs along x, as the kernel itself says; 0: as the launch says
} HostKernel;

static const char* emulation_failure = "";  // of the last launch

// The host kernel that `code` names; its members are null where it is another cubin.
static HostKernel load_host_kernel(const char* code) {
    static const char prefix[] = "EMULATE ";
    HostKernel kernel = {NULL, NULL, 0};
    if (strncmp(code, prefix, sizeof prefix - 1) != 0) return kernel;
    void* library = dlopen(code + sizeof prefix - 1, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        emulation_failure = dlerror();
        return kernel;
    }
    kernel.kernel = (void (*)(void**))dlsym(library, "emulate_kernel");
    kernel.emulate = (Emulate)dlsym(library, "emulate");
    const unsigned* cluster = (const unsigned*)dlsym(library, "emulated_cluster");
    if (cluster != NULL) kernel.cluster = *cluster;
    return kernel;
}

// Returns the result of the launch.
static int run_host_kernel(HostKernel kernel, void** parameters, const unsigned* grid, unsigned threads,
                           unsigned shared_bytes, unsigned cluster) {
    const char* seed = getenv("FAKE_CUDA_SEED");
    const unsigned modes = (getenv("FAKE_CUDA_CONVERGED") ? 1 : 0) | (getenv("FAKE_CUDA_DEPENDENCIES") ? 2 : 0);
    const char* failure =
        kernel.emulate(kernel.kernel, parameters, grid, threads, shared_bytes,
                       kernel.cluster ? kernel.cluster : cluster, seed ? strtoull(seed, NULL, 0) : 0, modes);
    if (failure == NULL) return 0;
    emulation_failure = failure;
    return EMULATION_FAILED;
}

static void keep_map(void* to, int number, int type, uint32_t rank, const void* address, const uint64_t* dims,
                     const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides, int interleave,
                     int swizzle) {
    StubTensorMap map = {.number = number,
                         .type = (uint8_t)type,
                         .rank = (uint8_t)rank,
                         .swizzle = (uint8_t)swizzle,
                         .interleave = (uint8_t)interleave};
    map.address = (uint64_t)(uintptr_t)address;
    for (uint32_t i = 0; i < rank && i < 4; ++i) {
        map.dims[i] = dims[i];
        map.box[i] = (uint16_t)box[i];
        map.element_strides[i] = (uint8_t)element_strides[i];
        if (i > 0) map.strides[i - 1] = strides[i - 1];
    }
    memcpy(to, &map, sizeof map);
}
