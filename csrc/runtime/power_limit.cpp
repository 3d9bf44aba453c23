#include "runtime/power_limit.hpp"

#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <thread>

#include "core/device.hpp"

namespace deep_gemm {
namespace {

constexpr const char* kLibraryName = "libnvidia-ml.so.1";
// A driver without the persistence mode takes up to about a second for each GPU of the host. After this time NVML is
// taken to hang, and not asked again.
constexpr std::chrono::seconds kPatience{5};

using Board = struct BoardTag*;  // nvmlDevice_t; 0 is NVML_SUCCESS
using Init = int (*)();
using FindBoard = int (*)(const char* bus_id, Board* board);
using ReadLimit = int (*)(Board board, unsigned* milliwatts);

template <class FunctionPointer>
FunctionPointer find_function(void* library, const char* name) {
    return reinterpret_cast<FunctionPointer>(dlsym(library, name));
}

// NVML, initialised, or null. That initialises no GPU; finding a board by its PCI address then does so for that board
// alone, whereas by its UUID it may do so for all of the host.
void* open_nvml() {
    void* library = dlopen(kLibraryName, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    const auto init = find_function<Init>(library, "nvmlInit_v2");
    return init != nullptr && init() == 0 ? library : nullptr;
}

// In milliwatts, 0 where it cannot be read.
uint32_t read_limit(void* library, Board board, const char* name) {
    const auto read = find_function<ReadLimit>(library, name);
    unsigned milliwatts = 0;
    return read != nullptr && read(board, &milliwatts) == 0 ? milliwatts : 0;
}

std::string ask_nvml(const std::string& bus_id) {
    static void* const library = open_nvml();
    if (library == nullptr) return {};
    const auto find_board = find_function<FindBoard>(library, "nvmlDeviceGetHandleByPciBusId_v2");
    Board board = nullptr;
    if (find_board == nullptr || find_board(bus_id.c_str(), &board) != 0) return {};
    // What is enforced may be below what was set with nvidia-smi: the host's management may limit a board, too.
    return power_suffix(read_limit(library, board, "nvmlDeviceGetEnforcedPowerLimit"),
                        read_limit(library, board, "nvmlDeviceGetPowerManagementDefaultLimit"));
}

}  // namespace

std::string read_power_suffix(const std::string& bus_id) {
    static bool is_hanging = false;
    if (is_hanging || bus_id.empty()) return {};
    try {
        std::packaged_task<std::string()> task([bus_id] { return ask_nvml(bus_id); });
        std::future<std::string> suffix = task.get_future();
        std::thread thread(std::move(task));
        is_hanging = suffix.wait_for(kPatience) != std::future_status::ready;
        if (is_hanging)
            thread.detach();
        else
            thread.join();
        return is_hanging ? std::string() : suffix.get();
    } catch (const std::exception&) {  // no thread to be had
        return {};
    }
}

}  // namespace deep_gemm
