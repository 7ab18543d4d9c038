"""A firmware for QEMU that fills memory with cold pages, and checks them when it is told to.

QEMU has no other software then, so that its memory is filled within seconds even where QEMU itself runs in an
emulated machine. Port 0xe9 is that of ``-debugcon``. The guest waits without use of a CPU, until a
non-maskable interrupt (``nmi`` in the monitor of QEMU) has it check all pages.
"""

from typing import Final

FIRST: Final = 1 << 20
"""The address of the first page; what is below belongs to the firmware."""

FILLED, GOOD, BAD = "F", "V", "B"
"""The characters that the guest prints: all pages are filled; all have their content; one has not."""

_END = "END."
_CODE: Final = (
    # 16 bits: open the gate A20, load the tables, and switch to flat memory with 32 bits.
    ("fa", "cli"),
    ("b0 02 e6 92", "mov al, 2; out 0x92, al"),
    ("2e 66 0f 01 16 80 00", "lgdt cs:[0x80]"),
    ("2e 66 0f 01 1e 86 00", "lidt cs:[0x86]"),
    ("0f 20 c0 0c 01 0f 22 c0", "mov eax, cr0; or al, 1; mov cr0, eax"),
    ("66 ea 23 00 0f 00 08 00", "jmp 8:0xf0023"),
    ("66 b8 10 00 8e d8 8e d0 bc 00 80 00 00", "mov ax, 16; mov ds, ax; mov ss, ax; mov esp, 0x8000"),
    # Each page begins with its own address.
    ("b8 00 00 10 00", "mov eax, FIRST"),
    ("89 00 05 00 10 00 00", "fill: mov [eax], eax; add eax, 4096"),
    (f"3d {_END} 72 f2", "cmp eax, END; jb fill"),
    ("b0 46", "mov al, 'F'"),
    ("e6 e9 f4", "wait: out 0xe9, al; hlt"),
    ("b8 00 00 10 00", "mov eax, FIRST"),
    ("39 00 b1 42 75 0e", "check: cmp [eax], eax; mov cl, 'B'; jne told"),
    (f"05 00 10 00 00 3d {_END} 72 ee b1 56", "add eax, 4096; cmp eax, END; jb check; mov cl, 'V'"),
    ("88 c8 eb e0", "told: mov al, cl; jmp wait"),
    ("cf 66 90", "nmi: iret; and a filler"),
    # Segments: none, code and data of 4 GiB; then the registers of both tables.
    ("00 00 00 00 00 00 00 00", "at 0x68"),
    ("ff ff 00 00 00 9a cf 00 ff ff 00 00 00 92 cf 00", "code, data"),
    ("17 00 68 00 0f 00 17 00 90 00 0f 00", "at 0x80: 0xf0068 and 0xf0090, of 24 bytes each"),
    ("00 00 00 00", "a filler"),
    # Interrupts: only 2, the non-maskable one, has a handler.
    ("00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00", "at 0x90"),
    ("65 00 08 00 00 8e 0f 00", "8:0xf0065"),
)
_SIZE = 1 << 16
_RESET: Final = (_SIZE - 16, bytes.fromhex("ea 00 00 00 f0"))
"""Where the processor begins, and a jump to the start of the firmware."""


def cold_rom(end: int) -> bytes:
    """The firmware; the guest fills its memory from ``FIRST`` to ``end``, in bytes."""
    limit = end.to_bytes(4, "little").hex(" ")
    code = b"".join(bytes.fromhex(line.replace(_END, limit)) for line, _ in _CODE)
    at, jump = _RESET
    return (code.ljust(at, b"\0") + jump).ljust(_SIZE, b"\0")
