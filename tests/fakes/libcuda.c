// A stub CUDA driver for machines without one: reports a GPU as told by environment variables, computes nothing, and appends
// one JSON line per interesting call to a log, so that tests can check what the launch asked the driver for.
//
//   FAKE_CUDA_LOG             path of the log (none when unset)
//   FAKE_CUDA_DRIVER          version (13000)          FAKE_CUDA_INIT_ERROR    result of cuInit (0)
//   FAKE_CUDA_NAME            "NVIDIA H200"            FAKE_CUDA_DEVICES       number of GPUs (1)
//   FAKE_CUDA_CC              "90": major, minor       FAKE_CUDA_SMS           SMs of GPU 0 (132); GPU i has i fewer
//   FAKE_CUDA_CLUSTERS        co-resident clusters (60)
//   FAKE_CUDA_LOAD_ERRORS     results of the next cuLibraryLoadData, in turn, e.g. "209,0"; then 0
//   FAKE_CUDA_LAUNCH_ERROR    result of cuLaunchKernelEx (0)
//   FAKE_CUDA_MISSING         a symbol that cuGetProcAddress does not know
//   FAKE_CUDA_ARGUMENTS       arguments of a plain kernel to log (0)
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcuda_emulator.h"

typedef struct {
    unsigned grid[3], block[3], shared_bytes;
    void* stream;
    struct {
        int id;
        char pad[4];
        union {
            char bytes[64];
            unsigned cluster[3];
            int is_overlapping;
        } value;
    }* attributes;
    unsigned num_attributes;
} LaunchConfig;

enum { MAX_DEVICES = 8 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char contexts[MAX_DEVICES];  // their addresses are the primary contexts
static int num_maps = 1, num_libraries;  // map 0 is one that nobody encoded
enum { MAX_LIBRARIES = 1 << 16, FIRST_KERNEL = 1000 };
static char is_grouped[MAX_LIBRARIES];  // whether a library's kernel has groups
static char is_transpose[MAX_LIBRARIES];  // or the transposing pass
static char is_logits[MAX_LIBRARIES];     // or one of attention logits
static char has_scales[MAX_LIBRARIES];    // whether its operands are FP8
enum { INVALID_VALUE = 1, MAX_SHARED = 232448, DEFAULT_SHARED = 48 << 10, MAX_THREADS = 1024, MAX_GRID_YZ = 65535 };
static int max_shared[MAX_LIBRARIES];  // what cuKernelSetAttribute allowed a library's kernel; 0: the default
static HostKernel host_kernels[MAX_LIBRARIES];  // or one to be emulated
static __thread void* stack[16];
static __thread int depth;
static __thread int capture_mode;

static long setting(const char* name, long value) {
    const char* text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : value;
}

static void record(const char* format, ...) {
    const char* path = getenv("FAKE_CUDA_LOG");
    if (!path) return;
    pthread_mutex_lock(&lock);
    FILE* log = fopen(path, "a");
    if (log) {
        va_list arguments;
        va_start(arguments, format);
        vfprintf(log, format, arguments);
        va_end(arguments);
        fputc('\n', log);
        fclose(log);
    }
    pthread_mutex_unlock(&lock);
}

static void* current(void) { return depth ? stack[depth - 1] : NULL; }
static int current_ordinal(void) { return current() ? (int)((char*)current() - contexts) : -1; }

static int cuInit(unsigned flags) {
    record("{\"call\":\"cuInit\",\"flags\":%u}", flags);
    return (int)setting("FAKE_CUDA_INIT_ERROR", 0);
}

static int cuDriverGetVersion(int* version) {
    *version = (int)setting("FAKE_CUDA_DRIVER", 13000);
    return 0;
}

static int cuGetErrorName(int result, const char** text) {
    static __thread char name[48];
    snprintf(name, sizeof name, "FAKE_ERROR_%d", result);
    *text = name;
    return 0;
}

static int cuGetErrorString(int result, const char** text) {
    *text = result == EMULATION_FAILED && *emulation_failure ? emulation_failure : result ? "an error of the stub" : "no error";
    return 0;
}

static int cuDeviceGetCount(int* count) {
    *count = (int)setting("FAKE_CUDA_DEVICES", 1);
    return 0;
}

static int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal < setting("FAKE_CUDA_DEVICES", 1) ? 0 : 101;
}

static int cuDeviceGetName(char* name, int size, int device) {
    (void)device;
    const char* text = getenv("FAKE_CUDA_NAME");
    snprintf(name, (size_t)size, "%s", text ? text : "NVIDIA H200");
    return 0;
}

static int cuDeviceGetUuid(unsigned char* uuid, int device) {
    for (int i = 0; i < 16; ++i) uuid[i] = (unsigned char)(16 * i + device);
    return 0;
}

// CUDA's order is not that of the bus: GPU 0 has the highest address.
static int cuDeviceGetPCIBusId(char* text, int size, int device) {
    snprintf(text, (size_t)size, "0000:%02X:00.0", 0x80 - 16 * device);
    return 0;
}

static int cuDeviceGetAttribute(int* value, int attribute, int device) {
    const long capability = setting("FAKE_CUDA_CC", 90);
    switch (attribute) {
        case 13: *value = 1980000; return 0;
        case 16: *value = (int)setting("FAKE_CUDA_SMS", 132) - device; return 0;
        case 36: *value = 3201000; return 0;
        case 37: *value = 6144; return 0;
        case 38: *value = 62914560; return 0;
        case 75: *value = (int)capability / 10; return 0;
        case 76: *value = (int)capability % 10; return 0;
        case 97: *value = capability == 90 ? 232448 : 166912; return 0;
        default: return 1;
    }
}

static int cuDevicePrimaryCtxRetain(void** context, int device) {
    record("{\"call\":\"cuDevicePrimaryCtxRetain\",\"device\":%d}", device);
    *context = &contexts[device];
    return 0;
}

static int cuCtxGetCurrent(void** context) {
    *context = current();
    return 0;
}

static int cuCtxGetDevice(int* device) {
    *device = current_ordinal();
    return current() ? 0 : 201;
}

static int cuCtxPushCurrent(void* context) {
    stack[depth++] = context;
    record("{\"call\":\"cuCtxPushCurrent\",\"device\":%d}", current_ordinal());
    return 0;
}

static int cuCtxPopCurrent(void** context) {
    *context = current();
    --depth;
    record("{\"call\":\"cuCtxPopCurrent\",\"depth\":%d}", depth);
    return 0;
}

static int cuThreadExchangeStreamCaptureMode(int* mode) {
    const int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    record("{\"call\":\"cuThreadExchangeStreamCaptureMode\",\"mode\":%d}", capture_mode);
    return 0;
}

// Take the first number off the comma-separated list in an environment variable; 0 where it is empty.
static int take_number(const char* name) {
    const char* list = getenv(name);
    if (!list || !*list) return 0;
    char rest[256];
    const char* comma = strchr(list, ',');
    const int number = atoi(list);
    snprintf(rest, sizeof rest, "%s", comma ? comma + 1 : "");
    setenv(name, rest, 1);
    return number;
}

static int cuLibraryLoadData(void** library, const void* code, void* a, void* b, unsigned c, void* d, void* e, unsigned f) {
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    const int result = take_number("FAKE_CUDA_LOAD_ERRORS");
    record("{\"call\":\"cuLibraryLoadData\",\"first\":\"%.16s\",\"capture_mode\":%d,\"device\":%d,\"result\":%d}", (const char*)code, capture_mode,
           current_ordinal(), result);
    if (!code) return INVALID_VALUE;
    *library = (void*)(intptr_t)(++num_libraries);
    host_kernels[num_libraries % MAX_LIBRARIES] = load_host_kernel(code);
    return result;
}

static int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
    record("{\"call\":\"cuLibraryGetKernel\",\"name\":\"%s\"}", name);
    *kernel = (void*)(FIRST_KERNEL + (intptr_t)library);
    is_grouped[(intptr_t)library % MAX_LIBRARIES] = strstr(name, "grouped") || strstr(name, "batched") || strstr(name, "summed");
    is_transpose[(intptr_t)library % MAX_LIBRARIES] = strstr(name, "transpose_fp8") != NULL;
    is_logits[(intptr_t)library % MAX_LIBRARIES] = strstr(name, "mqa_logits") != NULL;
    has_scales[(intptr_t)library % MAX_LIBRARIES] = strstr(name, "fp8") != NULL;
    return 0;
}

static int cuKernelGetFunction(void** function, void* kernel) {
    *function = (void*)(1000000 + (intptr_t)kernel);
    return current() ? 0 : 201;
}

static int cuKernelGetAttribute(int* value, int attribute, void* kernel, int device) {
    (void)kernel, (void)device;
    const char* registers = getenv("FAKE_CUDA_REGISTERS");
    *value = attribute == 4 ? (registers ? atoi(registers) : 64) : 0;
    return 0;
}

static int cuKernelSetAttribute(int attribute, int value, void* kernel, int device) {
    record("{\"call\":\"cuKernelSetAttribute\",\"attribute\":%d,\"value\":%d,\"kernel\":%ld,\"device\":%d}", attribute, value, (long)(intptr_t)kernel, device);
    enum { MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };
    if (attribute != MAX_DYNAMIC_SHARED_SIZE_BYTES) return 0;
    if (value < 0 || value > MAX_SHARED) return INVALID_VALUE;
    max_shared[((intptr_t)kernel - FIRST_KERNEL) % MAX_LIBRARIES] = value;
    return 0;
}

enum { CLUSTER_DIMENSION = 4, PROGRAMMATIC_STREAM_SERIALIZATION = 6 };

static unsigned cluster_size(const LaunchConfig* config, unsigned absent) {
    for (unsigned i = 0; i < config->num_attributes; ++i)
        if (config->attributes[i].id == CLUSTER_DIMENSION) return config->attributes[i].value.cluster[0];
    return absent;
}

static int is_overlapping(const LaunchConfig* config) {
    for (unsigned i = 0; i < config->num_attributes; ++i)
        if (config->attributes[i].id == PROGRAMMATIC_STREAM_SERIALIZATION) return config->attributes[i].value.is_overlapping;
    return 0;
}

// What the real driver refuses: no kernel, an empty or too large grid or CTA, CTAs that fill no clusters, and more shared memory than was asked for.
static int is_launchable(const LaunchConfig* config, const void* function) {
    const unsigned *grid = config->grid, *block = config->block, cluster = cluster_size(config, 1);
    if (!function || !grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2]) return 0;
    if (grid[0] > INT32_MAX || grid[1] > MAX_GRID_YZ || grid[2] > MAX_GRID_YZ) return 0;
    if ((uint64_t)block[0] * block[1] * block[2] > MAX_THREADS) return 0;
    if (cluster < 1 || cluster > 8 || grid[0] % cluster) return 0;
    const int allowed = max_shared[((intptr_t)function - FIRST_KERNEL) % MAX_LIBRARIES];
    return config->shared_bytes <= (unsigned)(allowed ? allowed : DEFAULT_SHARED);
}

static int cuOccupancyMaxActiveClusters(int* clusters, void* function, const LaunchConfig* config) {
    record("{\"call\":\"cuOccupancyMaxActiveClusters\",\"kernel\":%ld,\"grid\":%u,\"block\":%u,\"smem\":%u,\"cluster\":%u,\"device\":%d}",
           (long)(intptr_t)function, config->grid[0], config->block[0], config->shared_bytes, cluster_size(config, 1),
           current_ordinal());
    if (!is_launchable(config, function)) return INVALID_VALUE;
    *clusters = (int)setting("FAKE_CUDA_CLUSTERS", 60);
    return 0;
}

// The map of the queries of attention logits, the only one with four dims.
static int encode_queries(unsigned char* map, int data_type, void* address, const uint64_t* dims, const uint64_t* strides, const uint32_t* box,
                          const uint32_t* element_strides, int swizzle, int has_context) {
    int is_valid = has_context && address && (uintptr_t)map % 64 == 0 && (uintptr_t)address % 16 == 0 && box[0] <= 16u << swizzle;
    for (int i = 0; i < 4; ++i) is_valid = is_valid && dims[i] >= 1 && dims[i] <= 1ull << 32 && box[i] >= 1 && box[i] <= 256;
    for (int i = 0; i < 3; ++i) is_valid = is_valid && strides[i] % 16 == 0 && strides[i] < 1ull << 40;
    record("{\"call\":\"cuTensorMapEncodeTiled\",\"map\":%d,\"type\":%d,\"address\":%llu,\"dims\":[%llu,%llu,%llu,%llu],"
           "\"strides\":[%llu,%llu,%llu],\"box\":[%u,%u,%u,%u],\"rank\":4,\"swizzle\":%d,\"valid\":%d}",
           num_maps, data_type, (unsigned long long)(uintptr_t)address, (unsigned long long)dims[0], (unsigned long long)dims[1],
           (unsigned long long)dims[2], (unsigned long long)dims[3], (unsigned long long)strides[0], (unsigned long long)strides[1],
           (unsigned long long)strides[2], box[0], box[1], box[2], box[3], swizzle, is_valid);
    keep_map(map, num_maps++, data_type, 4, address, dims, strides, box, element_strides, 0, swizzle);
    return is_valid ? 0 : 1;
}

// A map's 128 bytes hold its number, which a launch then logs. The rules that the real driver checks are checked: it wants a context, and takes
// any pitch of groups that is a multiple of 16 (seen on an H100 with CUDA 13.0).
static int cuTensorMapEncodeTiled(unsigned char* map, int data_type, uint32_t rank, void* address, const uint64_t* dims, const uint64_t* strides,
                                  const uint32_t* box, const uint32_t* element_strides, int interleave, int swizzle, int promotion, int fill) {
    const uint64_t element = data_type == 9 ? 2 : data_type == 7 ? 4 : 1;
    const uint64_t groups = rank == 3 ? dims[2] : 1, group_pitch = rank == 3 ? strides[1] : 0;
    const unsigned box_groups = rank == 3 ? box[2] : 1;
    const int has_good_groups = groups >= 1 && groups <= 1ull << 32 && group_pitch % 16 == 0 && group_pitch < 1ull << 40 && box_groups == 1 &&
                                (rank == 2 || element_strides[2] == 1);
    const int has_context = current() != NULL;
    if (rank == 4) return encode_queries(map, data_type, address, dims, strides, box, element_strides, swizzle, has_context);
    const int is_valid = address && (uintptr_t)map % 64 == 0 && (rank == 2 || rank == 3) && has_good_groups && has_context && (uintptr_t)address % 16 == 0 &&
                         dims[0] >= 1 && dims[1] >= 1 && dims[0] <= 1ull << 32 && dims[1] <= 1ull << 32 && strides[0] % 16 == 0 && strides[0] < 1ull << 40 && box[0] >= 1 && box[0] <= 256 && box[1] >= 1 &&
                         box[1] <= 256 && box[0] * element % 16 == 0 && element_strides[0] == 1 && element_strides[1] == 1 &&
                         (swizzle == 0 || box[0] * element <= 16ull << swizzle);
    record("{\"call\":\"cuTensorMapEncodeTiled\",\"map\":%d,\"type\":%d,\"address\":%llu,\"dims\":[%llu,%llu],\"pitch\":%llu,\"box\":[%u,%u],"
           "\"rank\":%u,\"groups\":%llu,\"group_pitch\":%llu,"
           "\"interleave\":%d,\"swizzle\":%d,\"promotion\":%d,\"fill\":%d,\"valid\":%d}",
           num_maps, data_type, (unsigned long long)(uintptr_t)address, (unsigned long long)dims[0], (unsigned long long)dims[1],
           (unsigned long long)strides[0], box[0], box[1], rank, (unsigned long long)groups, (unsigned long long)group_pitch, interleave, swizzle,
           promotion, fill, is_valid);
    keep_map(map, num_maps++, data_type, rank, address, dims, strides, box, element_strides, interleave, swizzle);
    return is_valid ? 0 : 1;
}

static int map_number(const void* map) {
    int number;
    memcpy(&number, map, sizeof number);
    return number;
}

// What the transposing pass knows of an operand.
static void write_matrices(char* text, void** parameters) {
    sprintf(text, "[%llu,%llu,%lld,%lld,%lld,%lld,%u,%u,%u]", *(unsigned long long*)parameters[0], *(unsigned long long*)parameters[1],
            *(long long*)parameters[2], *(long long*)parameters[3], *(long long*)parameters[4], *(long long*)parameters[5], *(unsigned*)parameters[6],
            *(unsigned*)parameters[7], *(unsigned*)parameters[8]);
}

// Kernels without dynamic shared memory are plain ones. The transposing pass: both operands.
static void record_transpose(const LaunchConfig* config, void* function, void** parameters) {
    char a[256], b[256];
    write_matrices(a, parameters), write_matrices(b, parameters + 9);
    record("{\"call\":\"cuLaunchKernelEx\",\"kernel\":%ld,\"grid\":[%u,%u,%u],\"block\":[%u,%u,%u],\"smem\":0,\"stream\":%ld,\"overlap\":%d,"
           "\"transpose\":[%s,%s],\"device\":%d}",
           (long)(intptr_t)function, config->grid[0], config->grid[1], config->grid[2], config->block[0], config->block[1], config->block[2],
           (long)(intptr_t)config->stream, is_overlapping(config), a, b, current_ordinal());
}

// Another plain kernel: as many of its arguments as FAKE_CUDA_ARGUMENTS says, 8 bytes each.
static void record_plain(const LaunchConfig* config, void* function, void** parameters) {
    char text[512] = "";
    const long count = setting("FAKE_CUDA_ARGUMENTS", 0);
    for (long i = 0; i < count && i < 16; ++i) sprintf(text + strlen(text), "%s%llu", i ? "," : "", *(unsigned long long*)parameters[i]);
    record("{\"call\":\"cuLaunchKernelEx\",\"kernel\":%ld,\"grid\":[%u,%u,%u],\"block\":[%u,%u,%u],\"smem\":0,\"stream\":%ld,\"overlap\":%d,"
           "\"plain\":[%s],\"device\":%d}",
           (long)(intptr_t)function, config->grid[0], config->grid[1], config->grid[2], config->block[0], config->block[1], config->block[2],
           (long)(intptr_t)config->stream, is_overlapping(config), text, current_ordinal());
}

enum { PARAMS_BYTES = 128, GROUP_PARAMS_BYTES = 96 };

static void write_hex(char* text, const void* bytes, int count) {
    for (int i = 0; i < count && getenv("FAKE_CUDA_LOG"); ++i) sprintf(text + 2 * i, "%02x", ((const unsigned char*)bytes)[i]);
}

static void record_gemm(const LaunchConfig* config, void* function, void** parameters, void** extra) {
    char text[2 * PARAMS_BYTES + 1] = "", groups[2 * GROUP_PARAMS_BYTES + 1] = "";
    write_hex(text, parameters[6], PARAMS_BYTES);
    if (is_grouped[((intptr_t)function - FIRST_KERNEL) % MAX_LIBRARIES]) write_hex(groups, parameters[7], GROUP_PARAMS_BYTES);
    record("{\"call\":\"cuLaunchKernelEx\",\"kernel\":%ld,\"grid\":[%u,%u,%u],\"block\":[%u,%u,%u],\"smem\":%u,\"stream\":%ld,\"cluster\":%u,"
           "\"overlap\":%d,\"maps\":[%d,%d,%d,%d,%d,%d],\"params\":\"%s\",\"groups\":\"%s\",\"extra\":%d,\"device\":%d}",
           (long)(intptr_t)function, config->grid[0], config->grid[1], config->grid[2], config->block[0], config->block[1], config->block[2],
           config->shared_bytes, (long)(intptr_t)config->stream, cluster_size(config, 0), is_overlapping(config), map_number(parameters[0]),
           map_number(parameters[1]), map_number(parameters[2]), map_number(parameters[3]), map_number(parameters[4]),
           map_number(parameters[5]), text, groups, extra != NULL,
           current_ordinal());
}

// Attention logits: four maps and 96 bytes of parameters.
static void record_logits(const LaunchConfig* config, void* function, void** parameters) {
    char text[2 * GROUP_PARAMS_BYTES + 1] = "";
    write_hex(text, parameters[4], GROUP_PARAMS_BYTES);
    record("{\"call\":\"cuLaunchKernelEx\",\"kernel\":%ld,\"grid\":[%u,%u,%u],\"block\":[%u,%u,%u],\"smem\":%u,\"stream\":%ld,\"cluster\":%u,"
           "\"overlap\":%d,\"maps\":[%d,%d,%d,%d],\"logits\":\"%s\",\"device\":%d}",
           (long)(intptr_t)function, config->grid[0], config->grid[1], config->grid[2], config->block[0], config->block[1], config->block[2],
           config->shared_bytes, (long)(intptr_t)config->stream, cluster_size(config, 0), is_overlapping(config), map_number(parameters[0]),
           map_number(parameters[1]), map_number(parameters[2]), map_number(parameters[3]), text, current_ordinal());
}

// Whether a GEMM kernel would follow a null pointer: D, or the scales of FP8 operands. The first three parameters are these.
static int has_null_operand(const LaunchConfig* config, const void* function, void** parameters) {
    const intptr_t library = ((intptr_t)function - FIRST_KERNEL) % MAX_LIBRARIES;
    if (config->shared_bytes == 0 || is_logits[library] || is_transpose[library]) return 0;
    void** const operands = parameters[6];
    return !operands[2] || (has_scales[library] && (!operands[0] || !operands[1]));
}

static int cuLaunchKernelEx(const LaunchConfig* config, void* function, void** parameters, void** extra) {
    if (!is_launchable(config, function) || !parameters || has_null_operand(config, function, parameters)) {
        record("{\"call\":\"refused launch\",\"grid\":[%u,%u,%u],\"block\":%u,\"smem\":%u,\"cluster\":%u}", config->grid[0], config->grid[1],
               config->grid[2], config->block[0], config->shared_bytes, cluster_size(config, 0));
        return INVALID_VALUE;
    }
    if (is_transpose[((intptr_t)function - FIRST_KERNEL) % MAX_LIBRARIES])
        record_transpose(config, function, parameters);
    else if (is_logits[((intptr_t)function - FIRST_KERNEL) % MAX_LIBRARIES])
        record_logits(config, function, parameters);
    else if (config->shared_bytes == 0)
        record_plain(config, function, parameters);
    else
        record_gemm(config, function, parameters, extra);
    const HostKernel host = host_kernels[((intptr_t)function - FIRST_KERNEL) % MAX_LIBRARIES];
    if (host.kernel) return run_host_kernel(host, parameters, config->grid, config->block[0], config->shared_bytes, cluster_size(config, 1));
    return (int)setting("FAKE_CUDA_LAUNCH_ERROR", 0);
}

static int cuMemsetD2D8Async(unsigned long long address, size_t pitch, unsigned char value, size_t width, size_t height, void* stream) {
    record("{\"call\":\"cuMemsetD2D8Async\",\"address\":%llu,\"pitch\":%zu,\"value\":%d,\"width\":%zu,\"height\":%zu,\"stream\":%ld,\"device\":%d}", address,
           pitch, value, width, height, (long)(intptr_t)stream, current_ordinal());
    if (!address) return INVALID_VALUE;
    for (size_t row = 0; row < height && setting("FAKE_CUDA_EMULATES", 0); ++row) memset((char*)(uintptr_t)address + row * pitch, value, width);
    return 0;
}

#define ENTRY(name) {#name, (void*)name}
static const struct {
    const char* name;
    void* function;
} entries[] = {
    ENTRY(cuInit), ENTRY(cuDriverGetVersion), ENTRY(cuGetErrorName), ENTRY(cuGetErrorString), ENTRY(cuDeviceGetCount), ENTRY(cuDeviceGet),
    ENTRY(cuDeviceGetName), ENTRY(cuDeviceGetUuid), ENTRY(cuDeviceGetPCIBusId), ENTRY(cuDeviceGetAttribute), ENTRY(cuDevicePrimaryCtxRetain), ENTRY(cuCtxGetCurrent),
    ENTRY(cuCtxGetDevice), ENTRY(cuCtxPushCurrent), ENTRY(cuCtxPopCurrent), ENTRY(cuThreadExchangeStreamCaptureMode), ENTRY(cuLibraryLoadData),
    ENTRY(cuLibraryGetKernel), ENTRY(cuKernelGetFunction), ENTRY(cuKernelGetAttribute), ENTRY(cuKernelSetAttribute),
    ENTRY(cuOccupancyMaxActiveClusters), ENTRY(cuTensorMapEncodeTiled), ENTRY(cuLaunchKernelEx), ENTRY(cuMemsetD2D8Async),
};

int cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags, int* status) {
    (void)version, (void)flags;
    const char* missing = getenv("FAKE_CUDA_MISSING");
    *function = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; ++i)
        if (strcmp(symbol, entries[i].name) == 0 && !(missing && strcmp(symbol, missing) == 0)) *function = entries[i].function;
    if (status) *status = *function ? 0 : 1;
    return *function ? 0 : 500;
}
