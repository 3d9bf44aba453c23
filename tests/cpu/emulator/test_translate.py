"""Inline PTX becomes calls of the emulator."""

import pytest

from tests.emulator.translate import translate


def statement(text: str) -> str:
    """Return the translation of one statement."""
    return translate(text, "header").partition("\n")[2]


def test_operands_stand_in_the_order_of_the_text():
    """Brackets and braces group them; `_` is a sink."""
    got = statement('asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(f(x)), "f"(a), "f"(b) : "memory");')
    assert "::emulator::op::st_shared_v2_f32((f(x)), (a), (b));" in got
    got = statement('asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");')
    assert "::emulator::op::mbarrier_arrive_shared_cta_b64(::emulator::Sink{}, (barrier));" in got


def test_registers_predicates_and_labels():
    """A register of the PTX does not hide a variable of the wrapper."""
    got = statement(
        'asm volatile("{\\n" ".reg .pred done;\\n" "AGAIN:\\n" "setp.ne.u32 done, %1, 0;\\n" "@!done bra AGAIN;\\n"'
        ' "selp.u32 %0, 1, 0, done;\\n" "}\\n" : "=r"(done) : "r"(x));'
    )
    assert got.startswith("[&] {") and "bool ptx_done" in got and "if (!ptx_done) goto AGAIN;" in got
    assert "::emulator::op::selp_u32((done), 1, 0, ptx_done);" in got


def test_lines_keep_their_numbers():
    """Reports name the header's lines; a compiler fence is nothing."""
    got = translate('a\nasm volatile(\n"" : "+f"(x)\n::"memory");\nb\n', "header").splitlines()
    assert got[0] == '#line 1 "header"' and got[5] == "b"


def test_an_unknown_wgmma_is_refused():
    """One without a shape that the emulator knows."""
    with pytest.raises(ValueError, match="not understood"):
        statement('asm volatile("wgmma.mma_async.sp.sync.aligned.x {%0}, %1, %2;" : "+f"(d) : "l"(a), "l"(b));')
