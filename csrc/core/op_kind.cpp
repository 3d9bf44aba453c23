#include "core/op_kind.hpp"

#include <string>

#include "core/error.hpp"

namespace deep_gemm {

Op parse_op(std::string_view name) {
    std::string known;
    for (Op op : kOps) {
        if (name == op_name(op)) return op;
        known += (known.empty() ? "" : ", ") + std::string(op_name(op));
    }
    throw Error(ErrorKind::kProblem,
                "op = '" + std::string(name.substr(0, 32)) + "': no such op kind; use one of " + known);
}

}  // namespace deep_gemm
