// Fuzzes the layers of C++ that take numbers from files and callers: fields of a problem and a config, legality,
// candidates, the heuristic, and the trees of an artefact. Built by tests/fuzz/run.py with libFuzzer and the address
// and undefined-behaviour sanitizers. Whatever the bytes are: a typed error, or a value that keeps its rules.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/candidates.hpp"
#include "core/config_features.hpp"
#include "core/error.hpp"
#include "core/heuristic.hpp"
#include "core/legality.hpp"
#include "selector/forest.hpp"

using namespace deep_gemm;

namespace {

#define REQUIRE(condition)                                                                 \
    if (!(condition)) {                                                                    \
        std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
        std::abort();                                                                      \
    }

// The bytes of one run, taken from the front; zeros beyond their end.
class Bytes {
 public:
    Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}

    template <typename T>
    T take() {
        T value{};
        const size_t count = std::min(sizeof(T), size_);
        if (count != 0) std::memcpy(&value, data_, count);
        data_ += count, size_ -= count;
        return value;
    }

    // A number of `field`'s range, or now and then any number.
    int64_t take_value(const IntegerField& field) {
        const uint8_t kind = take<uint8_t>();
        if (kind >= 250) return take<int64_t>();
        const int64_t span = field.maximum - field.minimum;
        if (kind >= 200) return field.maximum - take<uint8_t>() % (span + 1);
        if (kind >= 100) return field.minimum + int64_t(take<uint32_t>() % uint64_t(span + 1));
        return field.minimum + take<uint8_t>() % (span + 1);
    }

 private:
    const uint8_t* data_;
    size_t size_;
};

Problem take_problem(Bytes& bytes) {
    Problem problem;
    problem.op = Op(bytes.take<uint8_t>() % kNumOps);
    for (const ProblemField& field : kProblemFields)
        if (field.get(problem) == 0 || bytes.take<uint8_t>() % 4 == 0) {
            const int64_t value = bytes.take_value(field);
            if (value >= field.minimum && value <= field.maximum) field.set(problem, value);
        }
    return problem;
}

Config take_config(Bytes& bytes) {
    ConfigValues values;
    for (size_t i = 0; i < kConfigFields.size(); ++i) values[i] = bytes.take_value(kConfigFields[i]);
    return make_config(values);
}

void use_config(const Problem& problem, const Config& config, const Device& device) {
    const bool is_good = is_legal(problem, config, device);
    REQUIRE(is_good == legality_reason(problem, config, device).empty());
    REQUIRE(!is_good || smem_bytes(problem, config) <= device.smem_bytes);
    REQUIRE(!is_good || impossible_reason(problem.op, config, device).empty());
    (void)is_worth_trying(problem, config, device);
}

void use_problem(Bytes& bytes, const Device& device) {
    const Problem problem = take_problem(bytes);
    check_problem(problem);
    REQUIRE(is_consistent(problem) && !to_string(problem).empty());
    check_problem(kernel_identity(problem));
    const std::vector<Config> candidates = get_candidates(problem, device);
    REQUIRE(candidates.size() <= kMaxCandidates);
    const AnalyticChoice choice = make_legal_shortlist(problem, device, 1).front();
    REQUIRE(is_legal(problem, choice.config, device));
    REQUIRE(std::isfinite(choice.time_us) && choice.time_us > 0.0);
    use_config(problem, take_config(bytes), device);
}

template <typename T>
std::vector<T> take_vector(Bytes& bytes, size_t count) {
    std::vector<T> values(count);
    for (T& value : values) value = T(bytes.take<int8_t>());
    return values;
}

void use_forest(Bytes& bytes) {
    constexpr size_t kFeatures = 4, kRows = 3;  // other rows are zeros
    const size_t nodes = bytes.take<uint8_t>() % 32, trees = bytes.take<uint8_t>() % 4;
    ForestArrays arrays;
    arrays.tree_start = take_vector<int32_t>(bytes, trees + 1);
    arrays.feature = take_vector<int32_t>(bytes, nodes);
    arrays.left = take_vector<int32_t>(bytes, nodes);
    arrays.right = take_vector<int32_t>(bytes, nodes);
    for (size_t i = 0; i < nodes; ++i) arrays.threshold.push_back(bytes.take<double>());
    arrays.leaf_value = take_vector<double>(bytes, bytes.take<uint8_t>() % 16);
    const Forest forest(std::move(arrays), kFeatures);
    FeatureTable table(kFeatures);
    for (size_t feature = 0; feature < kFeatures; ++feature)
        for (size_t row = 0; row < kRows; ++row) table.at(feature, row) = bytes.take<float>();
    for (double sum : forest.predict(table)) REQUIRE(std::isfinite(sum));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Device devices[] = {known_device("h200"), known_device("h20")};
    Bytes bytes(data, size);
    const uint8_t kind = bytes.take<uint8_t>();
    try {
        if (kind % 4 == 3)
            use_forest(bytes);
        else
            use_problem(bytes, devices[kind % 2]);
    } catch (const Error& error) {
        REQUIRE(std::strlen(error.what()) > 0);
    }
    return 0;
}
