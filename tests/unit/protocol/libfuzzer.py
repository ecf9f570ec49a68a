"""Fuzzes the C codec with libFuzzer, which mutates those inputs that reach code that no input
reached before.

    python -m tests.unit.protocol.libfuzzer SECONDS           fuzz, from codec_corpus.txt
    python -m tests.unit.protocol.libfuzzer SECONDS --keep    and add new inputs to that file

The codec runs under AddressSanitizer and UndefinedBehaviorSanitizer, in a separate process. The C codec decodes each
input to records and to columns, and encodes records with its bytes. For one input in eight the Python codec does the
same, and both must agree.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import traceback
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from tests.tools import clang_with_libfuzzer
from tests.unit.protocol.asan import ROOT, RUN_WITH_CODEC

CORPUS: Final = Path(__file__).with_name("codec_corpus.txt")
FOUND: Final = ROOT / "build" / "fuzz-codec"
INPUT_BYTES_MAX: Final = 400
COMPARED_EVERY: Final = 8
_FLAGS: Final = (
    "-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -shared-libasan"
    " -fno-omit-frame-pointer -O1 -g -Wl,-Bsymbolic -Wl,--whole-archive {library} -Wl,--no-whole-archive"
    " -lstdc++ -lpthread -ldl -lm"
)
_NUMBERS: Final = (0, 1, -1, 5, 1_700_000_000_000, (1 << 63) - 1, -(1 << 63), (1 << 31) - 1)


class Case(NamedTuple):
    """The arguments of a call of the codec. Four bytes of an input choose the numbers; the other bytes
    are the records.
    """

    records: bytes
    count: int
    base_offset: int
    last_offset_delta: int
    base_timestamp_ms: int
    append_time_ms: int

    @classmethod
    def of(cls, data: bytes) -> Case:
        head = data[:4].ljust(4, b"\0")
        return cls(
            records=data[4:],
            count=head[0] if head[0] < 255 else 1 << 30,
            base_offset=_NUMBERS[head[1] & 7],
            last_offset_delta=head[0] - 1 if head[2] < 128 else head[2] - 130,
            base_timestamp_ms=_NUMBERS[head[1] >> 3 & 7],
            append_time_ms=_NUMBERS[head[3] & 7] if head[3] & 8 else -1,
        )


def run_case(data: bytes, *, compares: bool | None = None) -> None:
    """Run one input through the codec. Raises AssertionError if the codecs differ."""
    from tests.unit.protocol.codecs import PYTHON, C, columns_of, read_all

    case = Case.of(data)
    if compares is None:
        compares = zlib.crc32(data) % COMPARED_EVERY == 0
    arguments = (*case, 0)
    for way in (read_all, columns_of, _written):
        outcome = way(C, *arguments)
        assert not compares or outcome == way(PYTHON, *arguments), (way.__name__, data.hex())


def _written(codec: Any, records: bytes, count: int, *numbers: int) -> Any:
    """Append records whose keys, values and headers consist of the input. Return the outcome of each append, and the
    bytes of the records."""
    from tests.unit.protocol.codecs import outcome

    size = count % 16 + 1
    parts = [records[at : at + size] for at in range(0, len(records), size)]
    buffer = codec.RecordBuffer()
    outcomes = []
    for number, part in enumerate(parts):
        key = part if number & 1 else None
        headers = (("name", part), (part.hex(), None))[: number % 3]
        outcomes.append(outcome(buffer.append, key, part, headers, numbers[2], number * size))
    return outcomes, bytes(buffer.records())


def corpus() -> list[bytes]:
    """Return the stored inputs; each reaches code that no other reaches."""
    return [bytes.fromhex(line) for line in CORPUS.read_text().splitlines()]


def fuzz(*, seconds: int, runs: int = -1, keeps: bool = False) -> subprocess.CompletedProcess[str]:
    """Build the instrumented codec and fuzz it.

    A finding makes the exit status non-zero, and is stored in build/fuzz-codec.

    Raises:
        SystemExit: there is no clang with libFuzzer; the message says how to install it.
    """
    found = clang_with_libfuzzer()
    if found is None:
        sys.exit("no clang with libFuzzer: apt-get install clang-19 libclang-rt-19-dev")
    compiler, library = found
    FOUND.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "kept")
        _write(kept, corpus())
        codec = Path(folder, "_codec.abi3.so")
        subprocess.run(
            [sys.executable, str(ROOT / "proto" / "compile_codec.py"), str(codec)],
            env={
                **os.environ,
                "CC": compiler,
                "ODRADEK_CODEC_FLAGS": _FLAGS.format(library=library),
            },
            check=True,
            stdout=subprocess.DEVNULL,
        )

        def drive(*arguments: object) -> subprocess.CompletedProcess[str]:
            return _drive(codec, compiler, *arguments)

        grown = Path(folder, "grown")
        grown.mkdir()
        done = drive(f"-max_total_time={seconds}", f"-runs={runs}", grown, kept)
        if keeps and done.returncode == 0:
            merged = Path(folder, "merged")
            merged.mkdir()
            done = drive("-merge=1", merged, kept, grown)
            assert any(merged.iterdir()), done.stderr
            inputs = sorted(path.read_bytes().hex() for path in merged.iterdir())
            CORPUS.write_text("".join(f"{line}\n" for line in inputs))
        return done


def _drive(codec: Path, compiler: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    runtime = f"libclang_rt.asan-{platform.machine()}.so"
    asan = subprocess.run(
        [compiler, f"-print-file-name={runtime}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    options = [
        f"-max_len={INPUT_BYTES_MAX}",
        "-timeout=10",
        "-rss_limit_mb=4096",
        "-print_final_stats=1",
        "-verbosity=0",
        f"-artifact_prefix={FOUND}/",
    ]
    program = RUN_WITH_CODEC.replace("tests.unit.protocol.fuzz", "tests.unit.protocol.libfuzzer")
    # libFuzzer starts itself again to merge, by the name that it was started by.
    again = codec.with_name("libfuzzer")
    start = shlex.join(
        [sys.executable, "-c", program, str(codec), "--drive", str(codec), str(again)]
    )
    again.write_text(f'#!/bin/sh\nexec {start} "$@"\n')
    again.chmod(0o700)
    return subprocess.run(
        [again, *options, *map(str, arguments)],
        cwd=ROOT,
        env={
            **os.environ,
            "LD_PRELOAD": asan,
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "PYTHONMALLOC": "malloc",
        },
        check=False,
        capture_output=True,
        text=True,
    )


def _write(folder: Path, inputs: Iterable[bytes]) -> None:
    folder.mkdir()
    for number, data in enumerate(inputs):
        (folder / str(number)).write_bytes(data)


def drive_here(codec: str, arguments: list[str]) -> NoReturn:
    """Run libFuzzer, which is part of the codec's library, in this process; it ends the process.

    The first argument is the program with which libFuzzer may start itself again.
    """
    library = ctypes.PyDLL(codec)
    texts = [argument.encode() for argument in arguments]
    argc = ctypes.c_int(len(texts))
    argv = (ctypes.c_char_p * (len(texts) + 1))(*texts, None)
    pointer = ctypes.pointer(ctypes.cast(argv, ctypes.POINTER(ctypes.c_char_p)))
    status = library.LLVMFuzzerRunDriver(ctypes.byref(argc), pointer, _callback(run_case))
    sys.exit(status)


def _callback(work: Callable[[bytes], None]) -> Any:
    kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)

    def run(data: int | None, size: int) -> int:
        try:
            work(ctypes.string_at(data or 0, size) if size else b"")
        except BaseException:
            traceback.print_exc()
            os.abort()
        return 0

    return kind(run)


def main(arguments: list[str]) -> None:
    if arguments[0] == "--drive":
        drive_here(arguments[1], arguments[2:])
    done = fuzz(seconds=int(arguments[0]), keeps="--keep" in arguments)
    print(done.stdout, end="")
    print(done.stderr[-10_000:], end="", file=sys.stderr)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main(sys.argv[1:])
