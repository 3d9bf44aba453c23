// The op fp8_gemm_nt: the public C function, and the launch of one explicit kernel that the sweep and the tests use.
#pragma once

#include <Python.h>

#include "runtime/kernel.hpp"

namespace deep_gemm {

// Definition of the public function, with docstring and text signature; METH_FASTCALL | METH_KEYWORDS.
extern PyMethodDef fp8_gemm_nt_method;

// Operands of a Kernel.launch; all borrowed.
struct ExplicitLaunch {
    PyObject *a, *scale_a, *b, *scale_b, *d;
    int num_sms;
    float alpha;
    PyObject* stream;
};

// Check the operands and launch `kernel` on them, past selection and dispatch. Throws Error.
void launch_explicit(const LoadedKernel& kernel, const ExplicitLaunch& launch);

// SMs that launches may use; 0 = all of the device.
int get_num_sms();
void set_num_sms(int num_sms);

}  // namespace deep_gemm
