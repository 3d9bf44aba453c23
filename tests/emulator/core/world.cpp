#include "world.hpp"

#include <algorithm>

#include "division.hpp"
#include "places.hpp"

namespace emulator {

World world;
const Coordinates* here = nullptr;

constexpr u32 kStaticBytes = 48 * 1024;  // shared memory of a kernel without dynamic one

// ---- clusters, CTAs, threads ----

std::unique_ptr<Cta> World::make_cta(Cluster& cluster, u32 rank, u32 number) {
    auto cta = std::make_unique<Cta>();
    cta->cluster = &cluster, cta->rank = rank, cta->live = launch_->threads, cta->priority = random_();
    const Index& grid = launch_->grid;
    cta->block_index = {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
    cta->shared.reset(launch_->shared_bytes > 0 ? launch_->shared_bytes : kStaticBytes);
    cta->static_end = SharedMemory::kBase;
    const u32 registers = std::min(65536 / launch_->threads / 8 * 8, 248u);
    cta->free_registers = 65536 - registers * launch_->threads;
    for (u32 index = 0; index < launch_->threads; ++index) {
        if (index % 32 == 0) {
            cta->warps.push_back(std::make_unique<Warp>());
            cta->warps.back()->priority = random_();
            cta->warps.back()->registers = registers;
        }
        std::unique_ptr<Thread> thread = std::make_unique<Thread>();
        if (!spare_threads_.empty()) thread = std::move(spare_threads_.back()), spare_threads_.pop_back();
        Warp& warp = *cta->warps.back();
        thread->cta = cta.get(), thread->warp = &warp, thread->index = index, thread->lane = index % 32;
        thread->coordinates = {{index, 0, 0}, cta->block_index, {launch_->threads, 1, 1}, grid};
        thread->is_done = false, thread->waits_for.clear(), thread->place = nullptr, thread->last_fence = 0;
        thread->has_wgmma_fence = thread->has_cluster_arrived = false, thread->cluster_turn = 0;
        thread->last_barrier = 0, thread->watched = {};
        thread->copies = nullptr, thread->open_group = nullptr, thread->bulk_groups.clear();
        thread->fiber.prepare(&World::thread_main, thread.get());
        warp.threads.push_back(thread.get());
        warp.live |= 1u << thread->lane;
        make_ready(*thread);
        cta->threads.push_back(std::move(thread));
    }
    return cta;
}

void World::start_cluster(u32 index) {
    auto cluster = std::make_unique<Cluster>();
    for (u32 rank = 0; rank < launch_->cluster; ++rank)
        cluster->ctas.push_back(make_cta(*cluster, rank, index * launch_->cluster + rank));
    cluster->live = launch_->cluster * launch_->threads;
    clusters_.push_back(std::move(cluster));
}

void World::thread_main(void* pointer) {
    Thread& thread = *static_cast<Thread*>(pointer);
    const Launch& launch = *world.launch_;
    launch.kernel(launch.parameters);
    world.finish_thread(thread);
    thread.fiber.leave();
}

void World::finish_thread(Thread& thread) {
    Warp& warp = *thread.warp;
    if (!warp.accumulators.empty()) fail("a thread ends before its WGMMAs have been waited for");
    for (const auto& group : thread.bulk_groups)
        if (!group->is_read_known)
            fail("a thread ends before its bulk copies out of shared memory have been waited for");
    if (thread.open_group) fail("a thread ends with bulk copies that it has not committed");
    thread.is_done = true;
    warp.live &= ~(1u << thread.lane);
    --thread.cta->live, --thread.cta->cluster->live;
}

void World::end_finished() {
    for (auto& cluster : clusters_) {
        if (cluster->live > 0) continue;
        for (auto& cta : cluster->ctas)
            for (auto& thread : cta->threads) spare_threads_.push_back(std::move(thread));
    }
    std::erase_if(clusters_, [](const auto& cluster) { return cluster->live == 0; });
}

// ---- the scheduler ----

// Seeds 0 and 1 are the extremes: threads run until they wait, and asynchronous operations end at once or as late as
// possible.
Policy World::draw_policy() {
    Policy policy;
    if (launch_->seed < 2) {
        policy.async_percent = launch_->seed == 0 ? 100 : 0;
        return policy;
    }
    static constexpr u32 kTurns[] = {0, 3, 20, 200}, kPercents[] = {0, 1, 10, 50};
    policy.mean_turn = kTurns[random(4)], policy.async_percent = kPercents[random(4)];
    policy.order = Order(random(3)), policy.clusters_at_once = 1 + random(3);
    return policy;
}

void World::run(const Launch& launch) {
    const DivisionGuard guard;
    launch_ = &launch;
    random_.seed(launch.seed);
    leader_ = random(32), since_change_ = 0;
    policy_ = draw_policy();
    next_cluster_ = 0, num_clusters_ = launch.grid.x * launch.grid.y * launch.grid.z / launch.cluster;
    try {
        loop();
    } catch (const std::string& text) {
        failure_ = text;
    }
    ready_.clear(), pending_.clear(), clusters_.clear();
    current = nullptr;
    if (failure_.empty()) return;
    const std::string failure = std::move(failure_);
    failure_.clear();
    throw failure;
}

void World::loop() {
    for (;;) {
        end_finished();
        while (clusters_.size() < policy_.clusters_at_once && next_cluster_ < num_clusters_)
            start_cluster(next_cluster_++);
        const bool prefers_operation = !pending_.empty() && random(100) < policy_.async_percent;
        if (!ready_.empty() && !prefers_operation) {
            run_thread();
        } else if (!run_operation()) {
            if (clusters_.empty()) return;
            throw "deadlock: nothing is left to do for\n" + describe_waits();
        }
        if (!failure_.empty()) return;
    }
}

bool World::run_operation() {
    if (pending_.empty()) return false;
    std::swap(pending_[random(u32(pending_.size()))], pending_.back());
    const std::function<void()> operation = std::move(pending_.back());
    pending_.pop_back();
    operation();
    return true;
}

// By priority: of warps, which now and then changes for the chosen one (a slow warp is slow for long), or of whole
// CTAs.
Warp* World::choose_warp() {
    const auto best = [this](auto is_less) { return *std::max_element(ready_.begin(), ready_.end(), is_less); };
    if (policy_.order == Order::kCtas)
        return best([](Warp* a, Warp* b) { return a->threads[0]->cta->priority < b->threads[0]->cta->priority; });
    if (policy_.order == Order::kNone) return ready_[policy_.mean_turn == 0 ? 0 : random(u32(ready_.size()))];
    Warp* chosen = best([](Warp* a, Warp* b) { return a->priority < b->priority; });
    if (++since_change_ % 64 == 0) chosen->priority = random_();
    return chosen;
}

void World::run_thread() {
    Warp* warp = choose_warp();
    const u32 turn = policy_.mean_turn == 0 ? 0 : random(32);
    const u32 eager = warp->ready & ~warp->lets_others_go, lanes = eager != 0 ? eager : warp->ready;
    const u32 rotated = turn == 0 ? lanes : lanes >> turn | lanes << (32 - turn);
    const u32 lane = (u32(__builtin_ctz(rotated)) + turn) % 32;
    warp->ready &= ~(1u << lane);
    if (warp->ready == 0) std::erase(ready_, warp);
    turn_left_ = policy_.mean_turn == 0 ? ~0u : 1 + random(2 * policy_.mean_turn);
    current = warp->threads[lane];
    here = &current->coordinates;
    current->fiber.resume();
    current = nullptr;
}

void World::make_ready(Thread& thread) {
    Warp& warp = *thread.warp;
    if (warp.ready == 0) ready_.push_back(&warp);
    warp.ready |= 1u << thread.lane;
}

void World::enter(void* place) {
    current->place = place;
    ++step;
    if (turn_left_ != ~0u && --turn_left_ == 0) give_way();
}

void World::give_way() {
    Thread& thread = *current;
    make_ready(thread);
    thread.fiber.leave();
}

void World::let_lanes_catch_up() {
    if (!launch_->is_converged) return;
    Warp& warp = *current->warp;
    const u32 lane = 1u << current->lane;
    warp.lets_others_go |= lane;
    while ((warp.ready & ~warp.lets_others_go) != 0) give_way();
    warp.lets_others_go &= ~lane;
}

void World::wait(Waiters& waiters, std::string what) {
    Thread& thread = *current;
    thread.waits_for = std::move(what);
    waiters.push_back(&thread);
    thread.fiber.leave();
    thread.waits_for.clear();
}

void World::wake(Waiters& waiters) {
    for (Thread* thread : waiters) make_ready(*thread);
    waiters.clear();
}

void World::fail(const std::string& text) {
    if (current == nullptr) throw text;
    failure_ = text + "\n  in CTA " + std::to_string(current->cta->block_index.x) + " thread " +
               std::to_string(current->index) + "\n" + describe_place(current->place);
    current->fiber.leave();
    __builtin_trap();
}

// ---- reports ----

std::string World::describe_waits() const {
    std::map<std::string, std::vector<std::string>> waits;  // by what is waited for and where
    for (const auto& cluster : clusters_)
        for (const auto& cta : cluster->ctas)
            for (const auto& warp : cta->warps)
                for (const Thread* thread : warp->threads) {
                    if (thread->is_done) continue;
                    auto& places = waits[thread->waits_for + "\n" + describe_place(thread->place)];
                    places.push_back(std::to_string(cta->block_index.x) + ":" + std::to_string(thread->index));
                }
    std::string text;
    for (const auto& [what, threads] : waits)
        text += std::to_string(threads.size()) + " threads (CTA:thread " + threads.front() + " .. " + threads.back() +
                "): " + what;
    return text;
}

}  // namespace emulator
