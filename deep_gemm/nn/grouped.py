"""Many linear layers of the same shape in FP8, each on its own rows: the products of experts."""

from collections.abc import Iterable
from typing import Any

import torch

from deep_gemm.arguments import check_bool, check_integer, shorten
from deep_gemm.errors import ArgumentError, ShapeError
from deep_gemm.nn.grouped_ops import nn_grouped, nn_grouped_masked, nn_grouped_tokens
from deep_gemm.nn.linear import check_options, check_rows, check_sizes, check_tensors, get_output_dtype
from deep_gemm.nn.products import check_features
from deep_gemm.nn.registration import check_no_tangents
from deep_gemm.nn.weights import Fp8Weight, check_stored


class Fp8GroupedLinear(Fp8Weight):
    """y[i] = f(x[i]) @ weight[g].T for the rows i of each group g, in FP8, forward and backward.

    f is the identity, or SwiGLU of rows [gate, up], which is quantised as it is computed. The forms of the weight,
    `accumulates_main_grad`, dtypes and rounding are those of Fp8Linear; there is no bias.

    Args:
        num_groups: of rows, each with a weight of its own.
        in_features, out_features: multiples of 16.
        trainable: keep the weight in `dtype` and quantise it in every forward; else it is stored in FP8.

    Attributes: `weight` [num_groups, out_features, in_features].
    Raises: ArgumentError for sizes that are no integers, ShapeError for those that no kernel takes.
    """

    def __init__(
        self,
        num_groups: int,
        in_features: int,
        out_features: int,
        *,
        trainable: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        check_sizes(num_groups=num_groups, in_features=in_features, out_features=out_features)
        check_options(device, dtype, trainable=trainable)
        check_features(in_features, out_features)
        if num_groups < 1:
            raise ShapeError(f"num_groups = {num_groups}: must be at least 1; a layer without groups has no rows.")
        super().__init__()
        bound = in_features**-0.5  # as torch.nn.Linear begins
        weight = torch.empty(num_groups, out_features, in_features, device=device, dtype=dtype).uniform_(-bound, bound)
        self.take_weight(weight, trainable)
        self._finish()

    def _finish(self) -> None:
        self.num_groups, self.out_features, self.in_features = self.weight.shape

    @classmethod
    def from_weight(cls, weight: torch.Tensor, *, trainable: bool = True) -> "Fp8GroupedLinear":
        """Return the layer of a weight [num_groups, out_features, in_features] of BF16 or FP32; a parameter is shared
        where it is to be trained.

        Raises: ArgumentError for no tensor; ShapeError for another rank, or for features that are no multiples of 16.
        """
        check_tensors(weight=weight)
        check_bool("trainable", trainable)
        _check_rank(weight)
        layer = cls._make_empty(trainable)
        layer.take_weight(weight, trainable)
        layer._finish()
        return layer

    @classmethod
    def from_linears(cls, linears: Iterable[torch.nn.Linear], *, trainable: bool | None = None) -> "Fp8GroupedLinear":
        """Return one layer of torch.nn.Linear layers of one shape, whose weights are copied; `trainable` is by default
        the first one's mode.

        Raises: ArgumentError for other modules, for none and for a bias, ShapeError for weights that differ in shape.
        """
        linears = list_modules("linears", linears)
        for linear in linears:
            if not isinstance(linear, torch.nn.Linear) or linear.bias is not None:
                raise ArgumentError(
                    f"linears: has {linear}, must be torch.nn.Linear layers without bias; add a bias outside."
                )
        shapes = {tuple(linear.weight.shape) for linear in linears}
        if len(shapes) != 1:
            raise ShapeError(f"linears: have the shapes {sorted(shapes)}, must be layers of one shape; pass such ones.")
        weight = torch.stack([linear.weight.detach() for linear in linears])
        return cls.from_weight(weight, trainable=linears[0].training if trainable is None else trainable)

    @classmethod
    def from_checkpoint(cls, weight_fp8: torch.Tensor, weight_scale_inv: torch.Tensor) -> "Fp8GroupedLinear":
        """Return the layer of an FP8 weight [num_groups, out_features, in_features] with scales [num_groups,
        ceil(out_features / 128), ceil(in_features / 128)].

        Raises: ArgumentError, DtypeError, ShapeError for operands of other types and shapes.
        """
        check_tensors(weight_fp8=weight_fp8, weight_scale_inv=weight_scale_inv)
        check_stored(weight_fp8, weight_scale_inv, rank=3)
        _check_rank(weight_fp8)
        layer = cls._make_empty(False)
        layer.store(weight_fp8, weight_scale_inv)
        layer._finish()
        return layer

    def forward(
        self, x: torch.Tensor, ends: torch.Tensor, *, is_swiglu: bool = False, expected_m: int | None = None
    ) -> torch.Tensor:
        """Return [m, out_features] for groups of rows that lie one after the other.

        Args:
            x: [m, in_features], or [m, 2 * in_features] with is_swiglu; m a multiple of 128. Rows between the groups
                are padding; they must be 0 where gradients of the weight are wanted, as must those of y's gradient.
            ends: int32 [num_groups] on x's device, the row behind the last one of each group; a group starts at the end
                of the one before, rounded up to a multiple of 128.
            expected_m: the rows of a group on average, where no gradient is wanted and rows of padding do not matter,
                which are then undefined: faster for groups of fewer than 128 rows.

        Rows of padding of y, and of x's gradient, are 0.
        Raises: ArgumentError, also where a gradient would be wanted with expected_m; DtypeError, ShapeError.
        """
        check_rows(x)
        check_tensors(ends=ends)
        check_bool("is_swiglu", is_swiglu)
        if expected_m is not None:
            expected_m = self._check_expected(x, expected_m, "undefined padding")
        return nn_grouped(
            x,
            self.weight,
            self.weight_scale_inv,
            ends,
            self.get_main_grad(),
            is_swiglu,
            get_output_dtype(x),
            expected_m,
        )

    def forward_tokens(
        self, x: torch.Tensor, rows: torch.Tensor, num_rows: int, ends: torch.Tensor, expected_m: int
    ) -> torch.Tensor:
        """Return [num_rows, out_features] of tokens at the rows of their choices; rows of no token are undefined. Each
        token is quantised once, not once for each choice.

        Args:
            x: [tokens, in_features]. rows: int64 [tokens, choices] on x's device, below num_rows; a choice of another
                row is left out. num_rows: a multiple of 128. ends, expected_m: as for forward.

        Raises: ArgumentError, also where a gradient would be wanted: this form has no backward; DtypeError, ShapeError.
        """
        check_rows(x)
        check_tensors(rows=rows, ends=ends)
        num_rows = check_integer("num_rows", num_rows)
        expected_m = self._check_expected(x, expected_m, "tokens at the rows of their choices")
        check_no_tangents("nn_grouped_tokens", (x, self.weight))
        weights = self.weight, self.weight_scale_inv
        return nn_grouped_tokens(x, rows, num_rows, *weights, ends, expected_m, get_output_dtype(x))

    def _check_expected(self, x: torch.Tensor, expected_m: int, what: str) -> int:
        """Return expected_m. Raises: ArgumentError, also where a gradient would be wanted of `what`."""
        expected_m = check_integer("expected_m", expected_m)
        if torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad):
            raise ArgumentError(
                f"{what}: have no backward; call under torch.no_grad(), or use the contiguous form for training,"
                " without expected_m."
            )
        return expected_m

    def forward_masked(
        self, x: torch.Tensor, masked_m: torch.Tensor, expected_m: int, *, is_swiglu: bool = False
    ) -> torch.Tensor:
        """Return [num_groups, m, out_features], of which the first masked_m[g] rows of each group are defined.

        Args:
            x: [num_groups, m, in_features], or twice as many features with is_swiglu.
            masked_m: int32 [num_groups] on x's device. expected_m: the rows of a group on average, a hint.

        Raises: ArgumentError where a gradient would be wanted: this form has no backward; ShapeError, DtypeError.
        """
        check_rows(x)
        check_tensors(masked_m=masked_m)
        check_bool("is_swiglu", is_swiglu)
        expected_m = self._check_expected(x, expected_m, "masked rows")
        check_no_tangents("nn_grouped_masked", (x, self.weight))
        return nn_grouped_masked(
            x, self.weight, self.weight_scale_inv, masked_m, expected_m, is_swiglu, get_output_dtype(x)
        )

    def extra_repr(self) -> str:
        """Return what print() shows."""
        return (
            f"num_groups={self.num_groups}, in_features={self.in_features}, out_features={self.out_features},"
            f" weight={self.describe_weight()}"
        )


def list_modules(name: str, modules: Any) -> list[torch.nn.Module]:
    """Return the modules of a list, or of what else gives them one by one.

    Raises: ArgumentError for anything else, and for none.
    """
    listed = list(modules) if isinstance(modules, Iterable) else []
    if not listed or not all(isinstance(module, torch.nn.Module) for module in listed):
        raise ArgumentError(f"{name} = {shorten(modules)}: must be modules, at least one; pass a list of them.")
    return listed


def _check_rank(weight: torch.Tensor) -> None:
    if weight.dim() != 3 or not len(weight):
        raise ShapeError(
            f"weight.shape = {list(weight.shape)}: must be [num_groups, out_features, in_features]; stack the groups."
        )
    check_features(weight.shape[2], weight.shape[1])
