// A stub of NVML beside the stub driver: boards by their place on the bus, with their power limits.
//
//   FAKE_CUDA_LOG             path of the log (none when unset), one JSON line a call
//   FAKE_CUDA_NVML            "<bus>=<limit>/<default>,...", the bus in hexadecimal, limits in mW; a limit of 0 cannot be read.
//                             Without it nvmlInit_v2 fails, as without a driver, and logs nothing
//   FAKE_CUDA_NVML_HANGS      seconds that nvmlInit_v2 takes (0)
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, MAX_BOARDS = 8 };

typedef struct {
    unsigned bus, limit_mw, default_mw;
} Board;
static Board boards[MAX_BOARDS];
static int num_boards;

static void record(const char* call) {
    const char* path = getenv("FAKE_CUDA_LOG");
    FILE* log = path ? fopen(path, "a") : NULL;
    if (!log) return;
    fprintf(log, "{\"call\":\"%s\"}\n", call);
    fclose(log);
}

static int give(unsigned value, unsigned* milliwatts) {
    *milliwatts = value;
    return value ? 0 : NOT_SUPPORTED;
}

int nvmlInit_v2(void) {
    const char* text = getenv("FAKE_CUDA_NVML");
    const char* seconds = getenv("FAKE_CUDA_NVML_HANGS");
    if (!text) return DRIVER_NOT_LOADED;
    record("nvmlInit_v2");
    if (seconds) sleep((unsigned)atoi(seconds));
    for (; text && num_boards < MAX_BOARDS; text = strchr(text, ',') ? strchr(text, ',') + 1 : NULL) {
        Board* board = &boards[num_boards];
        num_boards += sscanf(text, "%x=%u/%u", &board->bus, &board->limit_mw, &board->default_mw) == 3;
    }
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, Board** found) {
    unsigned domain, bus;
    record("nvmlDeviceGetHandleByPciBusId_v2");
    if (sscanf(bus_id, "%x:%x:", &domain, &bus) != 2) return NOT_FOUND;
    for (int i = 0; i < num_boards; ++i)
        if (boards[i].bus == bus) {
            *found = &boards[i];
            return 0;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetEnforcedPowerLimit(Board* board, unsigned* milliwatts) { return give(board->limit_mw, milliwatts); }
int nvmlDeviceGetPowerManagementDefaultLimit(Board* board, unsigned* milliwatts) { return give(board->default_mw, milliwatts); }
