"""torch.nn.Linear in FP8: forward and backward."""

from typing import Any

import torch

from deep_gemm.arguments import check_bool, check_flag, check_integer, shorten
from deep_gemm.errors import ArgumentError, DtypeError, ShapeError
from deep_gemm.nn.dense_ops import nn_linear
from deep_gemm.nn.products import check_features
from deep_gemm.nn.weights import Fp8Weight, check_stored
from deep_gemm.operands import check_tensor


def check_sizes(**sizes: Any) -> None:
    """Raise ArgumentError unless the sizes of a layer are integers."""
    for name, size in sizes.items():
        check_integer(name, size)


def check_options(device: Any, dtype: Any, **flags: Any) -> None:
    """Raise ArgumentError, DtypeError unless torch can make the parameters of a layer so."""
    for name, flag in flags.items():
        check_flag(name, flag)
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"dtype = {shorten(dtype)}: must be a torch.dtype; pass torch.bfloat16, for example.")
    if dtype is not None and (not dtype.is_floating_point or dtype.itemsize == 1):
        raise DtypeError(f"dtype = {dtype}: must be BF16, FP16 or FP32; FP8 weights are made with trainable=False.")
    try:
        torch.device("cpu" if device is None else device)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ArgumentError(f"device = {shorten(device)}: {reason}; pass 'cuda' or 'cpu', for example.") from None


def check_tensors(**tensors: Any) -> None:
    """Raise ArgumentError unless all of these are dense tensors."""
    for name, tensor in tensors.items():
        check_tensor(name, tensor)


def check_rows(x: Any) -> None:
    """Raise ArgumentError, DtypeError unless `x` is a tensor of BF16, FP16 or FP32, or wider."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.element_size() == 1:
        check_tensor("x", x)
        raise DtypeError(f"x.dtype = {x.dtype}: must be BF16, FP16 or FP32, which the layer quantises; convert it.")


def get_output_dtype(x: torch.Tensor) -> torch.dtype:
    """Return the dtype of a layer's output: that of autocast where it is on, else the input's."""
    device = x.device.type
    if device == "meta":  # has no autocast, and torch refuses the question
        return x.dtype
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class Fp8Linear(Fp8Weight):
    """y = x @ weight.T + bias, computed in FP8 forward and backward; the place of a torch.nn.Linear.

    Activations and gradients get a scale for each row and 128 columns, weights one for each 128 x 128 block, and the
    operands of the weight gradient one for each column and 128 rows. Sums are in FP32. CPU tensors run the same
    mathematics in the reference.

    The weight is trained in its own dtype, or stored in FP8 (deep_gemm.nn.weights); with `accumulates_main_grad` its
    gradient is added to `weight.main_grad` in FP32.

    Args:
        in_features, out_features: multiples of 16.
        bias: whether there is one.
        trainable: keep the weight in `dtype` and quantise it in every forward; else it is stored in FP8.
        device, dtype: of the parameters, as in torch.nn.Linear.

    Shape: x [..., in_features] of BF16, FP16 or FP32 -> [..., out_features] of the same dtype, or of autocast's. Any
        leading dimensions, which may be 0.
    Raises: ArgumentError for sizes that are no integers; ShapeError for features that are no multiples of 16, and for
        inputs of another last dimension.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        trainable: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        check_sizes(in_features=in_features, out_features=out_features)
        check_options(device, dtype, bias=bias, trainable=trainable)
        check_features(in_features, out_features)
        super().__init__()
        linear = torch.nn.Linear(in_features, out_features, bias, device=device, dtype=dtype)
        self.take_weight(linear.weight, trainable)
        self._finish(linear.bias)

    def _finish(self, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = self.weight.shape
        if bias is not None and not isinstance(bias, torch.nn.Parameter):
            bias = torch.nn.Parameter(bias, requires_grad=False)
        self.register_parameter("bias", bias)

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, *, trainable: bool | None = None) -> "Fp8Linear":
        """Return the FP8 layer of a torch.nn.Linear.

        Args:
            trainable: True: share the parameters of `linear`, which go on training. False: store the weight in FP8.
                Default: as `linear.training` says.

        Raises: ArgumentError for another module; ShapeError for features that are no multiples of 16.
        """
        if not isinstance(linear, torch.nn.Linear):
            raise ArgumentError(f"linear = {type(linear).__name__}: must be a torch.nn.Linear; pass such a module.")
        check_features(linear.in_features, linear.out_features)
        layer = cls._make_empty(linear.training)
        layer.take_weight(linear.weight, linear.training if trainable is None else trainable)
        layer._finish(linear.bias)
        return layer

    @classmethod
    def from_checkpoint(
        cls, weight_fp8: torch.Tensor, weight_scale_inv: torch.Tensor, bias: torch.Tensor | None = None
    ) -> "Fp8Linear":
        """Return a layer of an FP8 weight and its scales, as the checkpoints of DeepSeek-V3 and Qwen3-FP8 hold them.

        Args:
            weight_fp8: float8_e4m3fn [out_features, in_features], used as it is, or copied where it does not begin at a
                multiple of 16 bytes.
            weight_scale_inv: [ceil(out_features / 128), ceil(in_features / 128)] of a floating dtype: weight = values *
                scale.
            bias: [out_features], or None.

        Raises: ArgumentError, DtypeError, ShapeError for operands of other types and shapes.
        """
        check_tensors(weight_fp8=weight_fp8, weight_scale_inv=weight_scale_inv)
        if bias is not None:
            check_tensors(bias=bias)
        check_stored(weight_fp8, weight_scale_inv, rank=2)
        check_features(weight_fp8.shape[1], weight_fp8.shape[0])
        if bias is not None and bias.shape != weight_fp8.shape[:1]:
            raise ShapeError(
                f"bias.shape = {list(bias.shape)}: must be [{weight_fp8.shape[0]}]; pass one of that size."
            )
        layer = cls._make_empty(is_training=False)
        layer.store(weight_fp8, weight_scale_inv)
        layer._finish(bias)
        return layer

    def forward(self, x: torch.Tensor, *, is_swiglu: bool = False) -> torch.Tensor:
        """Return x @ weight.T + bias; with is_swiglu, of silu(gate) * up for x [..., 2 * in_features] with rows [gate,
        up], which is computed in FP32 and quantised at once.
        """
        check_rows(x)
        check_bool("is_swiglu", is_swiglu)
        return nn_linear(
            x, self.weight, self.weight_scale_inv, self.bias, self.get_main_grad(), is_swiglu, get_output_dtype(x)
        )

    def extra_repr(self) -> str:
        """Return what print() shows."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None},"
            f" weight={self.describe_weight()}"
        )
