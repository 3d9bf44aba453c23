#include "core/op_kind.hpp"

#include <string>

#include "core/error.hpp"
#include "core/text.hpp"

namespace deep_gemm {

Op parse_op(std::string_view name) {
    std::string known;
    for (Op op : kOps) {
        if (name == op_name(op)) return op;
        known += (known.empty() ? "" : ", ") + std::string(op_name(op));
    }
    throw Error(ErrorKind::kProblem, "op = " + quote(name) + ": no such op kind; use one of " + known);
}

}  // namespace deep_gemm
