#include "runtime/arguments.hpp"

#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/py_integers.hpp"
#include "runtime/tensor_view.hpp"

namespace deep_gemm {
namespace {

constexpr const char* kStreamRule = ": must be a torch.cuda.Stream, a raw stream handle (an int >= 0) or None.";

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorKind::kArgument, message); }

bool is_integer(PyObject* object) { return PyLong_Check(object) && !PyBool_Check(object); }

uint64_t parse_handle(PyObject* object) {
    const uint64_t handle = is_integer(object) ? PyLong_AsUnsignedLongLong(object) : 0;
    if (is_integer(object) && !PyErr_Occurred()) return handle;
    PyErr_Clear();
    fail("stream = " + short_repr(object) + kStreamRule);
}

// Not from a tensor, although it converts: reading a CUDA tensor would wait for the GPU.
double to_double(const char* name, PyObject* object) {
    if (PyFloat_CheckExact(object)) return PyFloat_AS_DOUBLE(object);
    const double value = is_tensor(object) ? 0.0 : PyFloat_AsDouble(object);
    const bool is_number = !PyErr_Occurred() && !is_tensor(object);
    PyErr_Clear();
    if (!is_number) fail(std::string(name) + " = " + short_repr(object) + ": must be a number; pass a float.");
    return value;
}

using Triple = std::array<int64_t, 3>;
using Pair = std::array<int64_t, 2>;

// A tuple or list of as many integers within 0..2^31 - 1, or nothing.
template <size_t size>
std::optional<std::array<int64_t, size>> parse_integers(PyObject* object) {
    if (!(PyTuple_Check(object) || PyList_Check(object)) || PySequence_Fast_GET_SIZE(object) != Py_ssize_t(size))
        return std::nullopt;
    std::array<int64_t, size> values{};
    for (size_t i = 0; i < size; ++i) {
        if (PySequence_Fast_GET_SIZE(object) != Py_ssize_t(size)) return std::nullopt;  // __index__ changed the list
        const Reference item = Reference::borrow(PySequence_Fast_GET_ITEM(object, Py_ssize_t(i)));
        values[i] = to_host_integer(item.get()).value_or(-1);
        if (values[i] < 0 || values[i] > Problem::kMaxDim) return std::nullopt;
    }
    return values;
}

// The attribute `name`, or null where there is none.
Reference find_attribute(PyObject* object, const char* name) {
    Reference attribute = Reference::steal(PyObject_GetAttrString(object, name));
    PyErr_Clear();
    return attribute;
}

Reference stream_number(PyObject* object) {
    if (is_integer(object)) return Reference::borrow(object);
    Reference handle = find_attribute(object, "cuda_stream");
    if (!is_given(handle.get())) fail("stream = " + short_repr(object) + kStreamRule);
    return handle;
}

void check_stream_device(PyObject* object, int ordinal) {
    const Reference index = find_attribute(object, "device_index");
    if (!index || !is_integer(index.get())) return;
    const int64_t given = to_integer(index.get()).value_or(-1);
    if (given == ordinal) return;
    throw Error(ErrorKind::kDevice, "stream = " + short_repr(object) + ": a stream of cuda:" + std::to_string(given) +
                                        ", but the tensors are on cuda:" + std::to_string(ordinal) +
                                        "; pass a stream of their device.");
}

}  // namespace

std::optional<int64_t> to_host_integer(PyObject* object) {
    if (!PyLong_CheckExact(object) && is_tensor(object)) return std::nullopt;
    return to_integer(object);
}

int64_t parse_integer(PyObject* object, const IntegerField& field) {
    if (PyLong_CheckExact(object) || !is_tensor(object)) return checked_integer(object, field, ErrorKind::kArgument);
    fail(std::string(field.name) + " = " + short_repr(object) + ": must be an integer, and no tensor; pass an int.");
}

Reference parse_pair(const char* name, PyObject* object) {
    Reference pair;
    if (PyTuple_Check(object) || PyList_Check(object)) pair = Reference::take(PySequence_Tuple(object));
    // Only the copy is asked: the length or the iterator of a subclass may say anything.
    if (!pair || PyTuple_GET_SIZE(pair.get()) != 2)
        fail(std::string(name) + " = " + short_repr(reinterpret_cast<PyObject*>(Py_TYPE(object))) +
             ": FP8 operands are pairs (data, scales); pass such a tuple.");
    return pair;
}

float parse_factor(const char* name, PyObject* object) {
    if (object == nullptr) return 1.0f;
    const float factor = float(to_double(name, object));
    if (!std::isfinite(factor))
        fail(std::string(name) + " = " + short_repr(object) + ": must be finite in FP32; pass a smaller float.");
    return factor;
}

void check_flag(const char* name, PyObject* object) {
    if (object != nullptr && !PyBool_Check(object))
        fail(std::string(name) + " = " + short_repr(object) + ": must be a bool; pass True or False.");
}

void check_epilogue(PyObject* object) {
    if (object == Py_False) return;
    fail("epilogue = " + short_repr(object) + ": no kernel of SM90 takes it, it is SM100 only; pass None.");
}

uint8_t parse_compiled_dims_argument(PyObject* object) {
    if (!is_given(object)) return 0;
    if (!PyUnicode_Check(object))
        fail("compiled_dims = " + short_repr(object) + ": must be a string such as 'nk', or None.");
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(object, &length);
    if (text == nullptr) {  // a lone surrogate, which is no dim either
        PyErr_Clear();
        text = "?", length = 1;
    }
    uint8_t bits = 0;
    for (char letter : std::string_view(text, size_t(length))) {
        const uint8_t bit = letter == 'm'   ? Problem::kCompileM
                            : letter == 'n' ? Problem::kCompileN
                            : letter == 'k' ? Problem::kCompileK
                                            : 0;
        if (bit == 0 || (bits & bit))
            fail("compiled_dims = " + short_repr(object) +
                 ": must hold each of m, n, k at most once and nothing else; pass e.g. 'nk'.");
        bits |= bit;
    }
    return bits;
}

bool parse_flag(const char* name, PyObject* object) {
    if (object == nullptr) object = Py_None;
    check_flag(name, object);
    return object == Py_True;
}

std::optional<Recipe> parse_recipe(PyObject* object) {
    if (!is_given(object)) return std::nullopt;
    const auto recipe = parse_integers<3>(object);
    if (recipe == Triple{1, 128, 128}) return Recipe::k1d2d;
    if (recipe == Triple{1, 1, 128}) return Recipe::k1d1d;
    fail("recipe = " + short_repr(object) +
         ": must be (1, 128, 128) (A scaled 1x128, B 128x128), (1, 1, 128) (both 1x128) or None; others are SM100 "
         "only: pass one of these.");
}

std::optional<Recipe> parse_recipes(const RecipeArguments& recipes) {
    if (!is_given(recipes.a) && !is_given(recipes.b)) return parse_recipe(recipes.both);
    if (is_given(recipes.both)) fail("recipe and recipe_a, recipe_b: say the same; pass the one or the other two.");
    for (const auto& [name, object] : {std::pair("recipe_a", recipes.a), std::pair("recipe_b", recipes.b)})
        if (!is_given(object)) fail(std::string(name) + " = None: recipe_a and recipe_b go together; pass both.");
    const auto a = parse_integers<2>(recipes.a), b = parse_integers<2>(recipes.b);
    if (a == Pair{1, 128} && b == Pair{128, 128}) return Recipe::k1d2d;
    if (a == Pair{1, 128} && b == Pair{1, 128}) return Recipe::k1d1d;
    fail("recipe_a = " + short_repr(recipes.a) + ", recipe_b = " + short_repr(recipes.b) +
         ": scales of SM90 are (1, 128) of A with (128, 128) or (1, 128) of B; others are SM100 only: pass these.");
}

bool parse_overlap(const OverlapArguments& overlap) {
    const auto is_set = [](PyObject* object) { return is_given(object) && object != Py_False; };
    const auto [flag, limit, signal] = overlap;
    if (is_given(flag)) check_flag("enable_overlap", flag);
    if (is_set(limit) && to_host_integer(limit).value_or(0) <= 0)
        fail("max_block_n = " + short_repr(limit) + ": must be an int >= 1, a hint; pass such a number or None.");
    if (is_set(flag) && !is_set(signal))
        fail("signal = " + short_repr(signal == nullptr ? Py_None : signal) +
             ": enable_overlap=True writes signals; pass torch.zeros(num_groups * ceil(max_m / 64), dtype=torch.int32) "
             "on the device of d.");
    if (is_set(signal) && !is_set(flag))
        fail("signal = " + short_repr(signal) + ": is written only with enable_overlap=True; pass that, or no signal.");
    return is_set(flag);
}

HeadSplits parse_head_splits(PyObject* object) {
    const auto splits = parse_integers<3>(object);
    if (!splits || (*splits)[0] + (*splits)[2] == 0)
        fail("head_splits = " + short_repr(object) +
             ": must be three integers (left, mid, right) within 0..2^31 - 1 with left + right > 0; pass "
             "such a tuple.");
    return {(*splits)[0], (*splits)[1], (*splits)[2]};
}

int64_t parse_expected_m(PyObject* object, const char* name) {
    const auto value = to_host_integer(object);
    if (!value || *value < 0)
        fail(std::string(name) + " = " + short_repr(object) +
             ": must be an int >= 0, the rows of a group on average (a hint); pass such a number.");
    return *value;
}

std::vector<int64_t> parse_group_sizes(PyObject* object) {
    if (!PyTuple_Check(object) && !PyList_Check(object))
        fail("ks = " + short_repr(object) +
             ": must be a list or tuple of ints, the K of each group; pass ks.tolist() of a tensor.");
    std::vector<int64_t> sizes;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
        const Reference item = Reference::borrow(PySequence_Fast_GET_ITEM(object, i));  // __index__ may change the list
        sizes.push_back(to_host_integer(item.get()).value_or(-1));
        if (sizes.back() < 0 || sizes.back() > Problem::kMaxDim)
            fail("ks[" + std::to_string(i) + "] = " + short_repr(item.get()) +
                 ": must be an int within 0..2^31 - 1; pass the K of that group.");
    }
    return sizes;
}

void check_stream(PyObject* object) {
    if (is_given(object)) parse_handle(stream_number(object).get());
}

void* parse_stream(PyObject* object, int ordinal, bool is_described) {
    if (!is_given(object)) return is_described ? nullptr : current_stream(ordinal);
    const Reference handle = stream_number(object);
    if (handle.get() != object) check_stream_device(object, ordinal);
    return reinterpret_cast<void*>(parse_handle(handle.get()));
}

}  // namespace deep_gemm
