#include <algorithm>
#include <vector>

#include "core/candidates.hpp"
#include "core/heuristic.hpp"
#include "core/legality.hpp"
#include "core/loop_rule.hpp"

namespace deep_gemm {
namespace {

// Whether trees choose between adding a tile onto C by TMA and loading C, also where the rule says nothing. In BF16
// groups of K adding gains up to 13 % with fewer steps than the rule asks for, and loses as much in other such
// problems. In FP8, where tiles have other knobs besides, a shortlist would hold too few tiles (1.4 % lost for 1.1).
bool judges_adding(const Problem& problem) {
    return op_kind(problem.op).k_is_divided() && !is_fp8(problem.op) && problem.c_mode == CMode::kAccumulate;
}

}  // namespace

std::vector<AnalyticChoice> make_shortlist(const Problem& problem, const Estimator& estimator, const Device& device,
                                           size_t count, const LateKinds& known) {
    std::vector<AnalyticChoice> shortlist;
    shortlist.reserve(count + 1);
    // Fewer than half of the first candidates are pairs: each has a single tile before it. At most four tiles have
    // their warpgroups side by side, of two widths: among eight is another one.
    const size_t ranked = known.pairs && known.beside ? count : std::clamp<size_t>(2 * count, 8, kMaxCandidates);
    for (const AnalyticChoice& tile : rank_candidates(problem, estimator, device, ranked)) {
        if (!known.has(problem, tile.config)) continue;
        const Config knobs = with_loop_knobs_of_tile(problem, tile.config, device, estimator.k_steps());
        const bool is_known = known.has(problem, knobs);
        if (is_known) shortlist.push_back({knobs, tile.facts, tile.time_us});
        if (!is_known || knobs != tile.config) shortlist.push_back(tile);
        if (Config adding = tile.config; knobs == adding && judges_adding(problem)) {
            adding.reduce_add = 1;
            const bool is_choice = is_legal_with_knobs(problem, adding, device) && known.has(problem, adding);
            if (is_choice) shortlist.push_back({adding, tile.facts, tile.time_us});
        }
        if (shortlist.size() >= count) break;
    }
    if (shortlist.size() > count) shortlist.pop_back();
    return shortlist;
}

const AnalyticChoice& find_feature_pick(const std::vector<AnalyticChoice>& ranked) {
    const auto is_early = [](const AnalyticChoice& choice) { return !is_late_tile(choice.config); };
    const auto found = std::find_if(ranked.begin(), ranked.end(), is_early);
    return found == ranked.end() ? ranked.front() : *found;
}

std::vector<AnalyticChoice> make_legal_shortlist(const Problem& problem, const Device& device, size_t count,
                                                 const LateKinds& known) {
    std::vector<AnalyticChoice> found;
    if (const auto twin = find_masked_twin(problem)) {
        for (const AnalyticChoice& choice :
             make_shortlist(*twin, Estimator(*twin, device), device, kMaxCandidates, known))
            if (found.size() < count && is_legal(problem, choice.config, device)) found.push_back(choice);
    }
    return found.empty() ? make_shortlist(problem, Estimator(problem, device), device, count, known) : found;
}

Config get_analytic_config(const Problem& problem, const Device& device) {
    return make_legal_shortlist(problem, device, 1).front().config;
}

}  // namespace deep_gemm
