// The way into the emulator from the stub driver.
#include <cstdio>
#include <cstdlib>

#include "world.hpp"

// Run a kernel. modes: 1, Launch::is_converged; 2, Launch::checks_dependencies. Returns null, or what went wrong, which
// stays valid until the next launch.
extern "C" const char* emulate(void (*kernel)(void**), void** parameters, const unsigned* grid, unsigned threads,
                               unsigned shared_bytes, unsigned cluster, unsigned long long seed, unsigned modes) {
    static std::string failure;
    emulator::Launch launch;
    launch.grid = {grid[0], grid[1], grid[2]};
    launch.threads = threads, launch.shared_bytes = shared_bytes, launch.cluster = cluster;
    launch.kernel = kernel, launch.parameters = parameters, launch.seed = seed, launch.is_converged = modes & 1,
    launch.checks_dependencies = modes & 2;
    try {
        emulator::world.run(launch);
        return nullptr;
    } catch (const std::string& text) {
        failure = text + "\n  (seed " + std::to_string(seed) + ")";
    }
    return failure.c_str();
}
