// What an emulated launch is made of: threads (fibers) in warps, CTAs and clusters, and the scheduler that chooses who
// goes on.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "fiber.hpp"
#include "shared_memory.hpp"
#include "types.hpp"

namespace emulator {

struct Thread;
struct Warp;
struct Cta;
struct Cluster;

// Threads that wait for one thing.
using Waiters = std::vector<Thread*>;

// mbarrier: a phase ends when no arrival and no byte is pending.
struct Barrier {
    u32 expected = 0, pending = 0;
    i64 bytes = 0;
    u64 phase = 0;
    Waiters waiters;
    std::vector<Range> landed;  // asynchronous writes that the end of the phase makes known
};

// bar.sync and barrier.cluster.
struct Meeting {
    u32 threads = 0, arrived = 0;
    u64 turn = 0;
    Waiters waiters;
};

// A group of bulk copies out of shared memory.
struct BulkGroup {
    u32 reads = 0, writes = 0;   // pending
    std::vector<Range> ranges;   // being read
    bool is_read_known = false;  // its thread has waited for its reads
    Waiters waiters;
};

// cp.async of one thread up to an arrival.
struct Copies {
    u32 pending = 0;
    std::vector<Range> ranges;
    std::function<void()> arrive;
};

struct Thread {
    Cta* cta = nullptr;
    Warp* warp = nullptr;
    u32 index = 0, lane = 0;
    Coordinates coordinates;
    Fiber fiber;
    bool is_done = false;
    std::string waits_for;  // empty: it can go on
    void* place = nullptr;  // where in the kernel it is
    u64 last_fence = 0;     // step of its last fence.proxy.async
    bool has_wgmma_fence = false, has_cluster_arrived = false;
    u64 cluster_turn = 0;
    u32 last_barrier = 0;  // offset of the one it waited for last
    Range watched{};       // a load that nothing may have waited for (dependencies.cpp)
    std::vector<u32> waiting_barriers;
    std::shared_ptr<Copies> copies;
    std::shared_ptr<BulkGroup> open_group;
    std::deque<std::shared_ptr<BulkGroup>> bulk_groups;
};

// Accumulators that WGMMA has been given and not yet given back; the registers hold a poison meanwhile.
struct Accumulator {
    u32 columns = 0, pending = 0;
    std::vector<float> values;          // [16][columns] of the warp
    std::vector<float*> registers[32];  // of each lane
};

struct Wgmma;

struct Warp {
    std::vector<Thread*> threads;
    u32 ready = 0, live = 0, lets_others_go = 0;  // a bit a lane
    u64 priority = 0;
    u32 registers = 0;  // of each thread
    // Lanes that meet at an instruction of the whole warp.
    const char* meeting = nullptr;
    u32 mask = 0, arrived = 0;
    u64 turn = 0;
    Waiters waiters;
    u64 in[32] = {}, out[32] = {};
    u32 matrices[32][4] = {};  // what stmatrix stores, and mma.sync's A
    float sums[32][4] = {};    // of mma.sync
    std::vector<float*> registers_of[32];
    // WGMMA.
    std::deque<std::shared_ptr<Wgmma>> multiplications;  // in order; those not yet executed
    std::vector<std::shared_ptr<Wgmma>> uncommitted;
    std::deque<std::vector<std::shared_ptr<Wgmma>>> wgmma_groups;
    std::map<float*, Accumulator> accumulators;  // by lane 0's first register
    Waiters wgmma_waiters;
};

struct Cta {
    Cluster* cluster = nullptr;
    u32 rank = 0, live = 0;
    u64 priority = 0;
    Index block_index;
    SharedMemory shared;
    std::vector<std::unique_ptr<Thread>> threads;
    std::vector<std::unique_ptr<Warp>> warps;
    std::unordered_map<u32, Barrier> barriers;
    Meeting named[16];
    std::unordered_map<const void*, u32> statics;  // where static variables lie
    u32 static_end = 0;
    u32 free_registers = 0;
    Waiters register_waiters;
};

struct Cluster {
    std::vector<std::unique_ptr<Cta>> ctas;
    Meeting meeting;
    u32 live = 0;
};

// Who goes first.
enum class Order : u32 { kNone, kWarps, kCtas };

// How a launch is scheduled; drawn from the seed.
struct Policy {
    u32 mean_turn = 0;      // instructions until a thread gives way; 0: never of its own accord
    u32 async_percent = 0;  // of the decisions run an asynchronous operation though threads are ready
    Order order = Order::kNone;
    u32 clusters_at_once = 1;
};

struct Launch {
    Index grid;
    u32 threads = 0, shared_bytes = 0, cluster = 1;
    void (*kernel)(void**) = nullptr;
    void** parameters = nullptr;
    u64 seed = 0;
    bool is_converged = false;         // lanes of a warp do not overtake each other at arrivals
    bool checks_dependencies = false;  // dependencies.cpp
};

class World {
 public:
    // Run a launch. Throws std::string: what went wrong.
    void run(const Launch& launch);

    Thread* current = nullptr;  // the thread that runs; null in the scheduler
    u64 step = 0;

    u32 random(u32 limit) { return u32(random_() % limit); }
    u32 leader() const { return leader_; }
    const Launch& launch() const { return *launch_; }

    // ---- by threads ----
    void enter(void* place);  // an instruction: give way now and then
    void give_way();
    void let_lanes_catch_up();  // the other lanes of the warp go on until they wait, if warps are to be converged
    void wait(Waiters& waiters, std::string what);  // until somebody wakes them
    [[noreturn]] void fail(const std::string& text);

    // ---- by anybody ----
    void wake(Waiters& waiters);
    void post(std::function<void()> operation) { pending_.push_back(std::move(operation)); }

 private:
    void start_cluster(u32 index);
    std::unique_ptr<Cta> make_cta(Cluster& cluster, u32 rank, u32 number);
    void end_finished();
    void loop();
    bool run_operation();
    void run_thread();
    Warp* choose_warp();
    Policy draw_policy();
    void finish_thread(Thread& thread);
    std::string describe_waits() const;
    static void thread_main(void* thread);

    const Launch* launch_ = nullptr;
    Policy policy_;
    std::mt19937_64 random_;
    u32 leader_ = 0, turn_left_ = 0, next_cluster_ = 0, num_clusters_ = 0, since_change_ = 0;
    std::vector<std::unique_ptr<Cluster>> clusters_;
    std::vector<Warp*> ready_;  // warps with ready lanes
    std::vector<std::function<void()>> pending_;
    std::vector<std::unique_ptr<Thread>> spare_threads_;
    std::string failure_;

    void make_ready(Thread& thread);
};

extern World world;
inline Thread& self() { return *world.current; }

}  // namespace emulator
