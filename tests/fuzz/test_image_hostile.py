"""Images made to do harm: the digest is right, so only the checks behind it can tell.

Each is an image or an `ImageError`, in bounded time and memory; what passes can be written again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import event, given
from hypothesis import strategies as st

import wasmckpt
from wasmckpt.errors import ImageError
from wasmckpt.formats import decode, encode
from wasmckpt.formats.features import MAGIC

from ..unit.formats.vectors import IMAGES, block, header_of, seal, with_header

START: Final = MAGIC + b"\x01"
EMPTY: Final = msgpack.packb(header_of(IMAGES["empty"]))
MIB: Final = 1 << 20
SHA: Final = bytes(32)


def image(*blocks: bytes, **header: object) -> bytes:
    """A sealed file with the header of the empty image, changed, and these blocks."""
    return seal(START + msgpack.packb(header_of(IMAGES["empty"]) | header) + b"".join(blocks))


def packed(kind: str, raw: bytes, where: object = (), size: int | None = None) -> bytes:
    """A block with a zstd frame."""
    return block(kind, zstandard.ZstdCompressor().compress(raw), where, 1, len(raw) if size is None else size)


def point(func: Any = 0, offset: Any = 0, kind: Any = 0, live: Any = (), live_types: Any = b"",
          stack_types: Any = b"") -> bytes:
    """The points stream of one point."""
    data: bytes = msgpack.packb([func, offset, kind, live, live_types, stack_types])
    return block("points", data)


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


U32: Final = (2**32 - 1).to_bytes(4, "little")
NO_SIZE: Final = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 100)
TWO_FRAMES: Final = 2 * zstandard.ZstdCompressor().compress(b"x" * 100)

REFUSED: Final[dict[str, tuple[bytes, str]]] = {
    # the header
    "header is no map": (seal(START + b"\x90"), "map"),
    "no header": (seal(START), "map"),
    "header nested 10,000 deep": (seal(START + b"\x81\xa1x" + nested(10_000)), "nested"),
    "maps nested 10,000 deep": (seal(START + b"\x81\x01" * 10_000 + b"\xc0"), "nested"),
    "keys nested 10,000 deep": (seal(START + b"\x81" * 10_000 + b"\xc0"), "nested"),
    "array of 2^32": (seal(START + b"\x81\xa1x\xdd\xff\xff\xff\xff"), "announces"),
    "map of 2^32": (seal(START + b"\xdf\xff\xff\xff\xff"), "announces"),
    "text of 2^32": (seal(START + b"\x81\xa1x\xdb\xff\xff\xff\xff"), "string"),
    "bytes of 2^32": (seal(START + b"\x81\xa1x\xc6\xff\xff\xff\xff"), "string"),
    "extension": (seal(START + b"\x81\xa1x\xc7\x01\x05a"), "0xc7"),
    "timestamp": (seal(START + b"\x81\xa1x\xd6\xff1234"), "0xd6"),
    "reserved byte": (seal(START + b"\x81\xa1x\xc1"), "0xc1"),
    "key is nil": (seal(START + b"\x81\xc0\xc0"), "key"),
    "key is an array": (seal(START + b"\x81\x90\xc0"), "key"),
    "key is true": (seal(START + b"\x82\xc3\xc0\x01\xc0"), "key"),
    "key twice, written in two ways": (seal(START + b"\x82\xa1a\xc0\xd9\x01a\xc0"), "twice"),
    "text is not UTF-8": (seal(START + b"\x81\xa1x\xa2\xff\xfe"), "UTF-8"),
    "text is a surrogate": (seal(START + b"\x81\xa1x\xa3\xed\xa0\x80"), "UTF-8"),
    "version is text": (seal(MAGIC + b"\xa11" + EMPTY), ""),
    "version 0": (seal(MAGIC + b"\x00" + EMPTY), "version 0"),
    "version -1": (seal(MAGIC + b"\xff" + EMPTY), ""),
    "version true": (seal(MAGIC + b"\xc3" + EMPTY), ""),
    "version is an array": (seal(MAGIC + b"\x91\x01" + EMPTY), ""),
    "version 2^64-1": (seal(MAGIC + b"\xcf" + b"\xff" * 8 + EMPTY), ""),
    "required is a text": (with_header(required="parent"), "array"),
    "parent not announced": (with_header(parent={"sha256": SHA, "position": 1}), "do not go together"),
    "parent announced only": (with_header(required=["parent"]), "do not go together"),
    "parent at 0": (with_header(required=["parent"], parent={"sha256": SHA, "position": 0}), "chain"),
    "steps of bytes": (with_header(entry={"steps": [b"x"], "current": 0, "arguments": []}), "text"),
    "step beyond": (with_header(entry={"steps": [], "current": 1, "arguments": []}), "beyond"),
    "argument of a short width": (
        with_header(entry={"steps": ["f"], "current": 0, "arguments": [[0x7F, b"abc"]]}), "4 bytes"),
    "argument without type": (with_header(entry={"steps": ["f"], "current": 0, "arguments": [[0, b""]]}), "type"),
    "global is a reference": (with_header(globals=[[0, 0x70, b"1234"]]), "do not go together"),
    "references announced only": (with_header(required=["references"]), "do not go together"),
    "global of a type of another proposal": (with_header(globals=[[0, 0x6E, b"1234"]]), "0x6e"),
    "global is a float": (with_header(globals=[[0, 0x7D, 1.5]]), "bytes"),
    "globals out of order": (with_header(globals=[[1, 0x7F, b"1234"], [0, 0x7F, b"1234"]]), "order"),
    "negative index": (with_header(globals=[[-1, 0x7F, b"1234"]]), "integer"),
    "index true": (with_header(globals=[[True, 0x7F, b"1234"]]), "integer"),
    "memory of 65537 pages": (with_header(memories=[[0, 65537, 0, 0]]), "65536"),
    "memory of 2^40 pages": (with_header(memories=[[0, 2**40, 0, 0]]), "integer"),
    "2^32 pages announced": (with_header(memories=[[0, 1, 2**32 - 1, 0]]), "more than the reader allows"),
    "pages announced, none there": (with_header(memories=[[0, 1, 1, 0]]), "fewer"),
    "2^32 frames announced": (with_header(frames=2**32 - 1), "more than the reader allows"),
    "frames announced, none there": (with_header(frames=5), "cut short"),
    "2^32 slots announced": (with_header(tables=[[0, 2**32 - 1, 2**32 - 1]]), "more than the reader allows"),
    "slots announced, none there": (with_header(tables=[[0, 10, 1]]), "length"),
    "module of 2^64": (with_header(optional=["module"], module={"sha256": SHA, "size": 2**64 - 1}), "allows"),
    "module announced, none there": (with_header(optional=["module"]), "another size"),
    "module is another": (image(block("module", b"x" * 8), optional=["module"]), "not the one"),
    "module too long": (image(block("module", b"x" * 9), optional=["module"]), "more than the 8"),
    "module not announced": (image(block("module", b"x" * 8)), ""),
    # blocks
    "block is no array": (image(b"\x80"), "0x80"),
    "block of four": (image(b"\x94\xa4host\x00\x00\x90"), "array of 5"),
    "block of 2^32": (image(b"\xdd\xff\xff\xff\xff"), "array of 5"),
    "kind is a number": (image(block(7, b"")), "text"),
    "kind of 1 MiB": (image(block("k" * MIB, b"")), "string"),
    "where of 1000": (image(block("zero", b"", [0] * 1000)), "announces"),
    "payload is a text": (image(msgpack.packb(["host", 0, 2, [], "ab"])), "binary"),
    "payload of 2^32": (image(b"\x95\xa4host\x00\x00\x90\xc6\xff\xff\xff\xff"), "longer than blocks"),
    "payload of 1 MiB + 1": (image(block("weather", bytes(MIB + 1), size=0)), "longer than blocks"),
    "size of 1 MiB + 1": (image(packed("host", b"", size=MIB + 1)), "1048576"),
    "size differs": (image(block("host", b"\x80", size=2)), "says 2"),
    "encoding 2": (image(block("host", b"\x80", (), 2)), "encoding 2"),
    "zstd of another size": (image(packed("host", b"\x80" * 10, size=9)), "differ"),
    "zstd bomb": (image(packed("host", bytes(64 * MIB), size=MIB)), "differ"),
    "zstd frame without size": (image(block("host", NO_SIZE, (), 1, 100)), "differ"),
    "two zstd frames": (image(block("host", TWO_FRAMES, (), 1, 100)), "unpack"),
    "not zstd": (image(block("host", b"abcdefgh", (), 1, 8)), "unpack"),
    "zstd of nothing": (image(packed("host", b"")), "differ"),
    "blocks out of order": (image(block("zero", b"", [0, 0, 1]), block("host", b"\x80"), memories=[[0, 1, 0, 1]]),
                            "too late"),
    "digest of 31": (START + EMPTY + b"\xc4\x1f" + bytes(31), "length"),
    # host, points, frames, tables
    "host is an array": (image(block("host", b"\x90")), "map"),
    "host has number keys": (image(block("host", b"\x81\x01\x01")), "text keys"),
    "host twice": (image(block("host", b"\x80\x80")), "follow"),
    "host nested 10,000 deep": (image(block("host", b"\x81\xa1x" + nested(10_000))), "nested"),
    "host of 3 million values": (image(*[packed("host", raw) for raw in (
        b"\x81\xa1x\xdd" + (3 * MIB).to_bytes(4, "big"), *[bytes(MIB)] * 3)]), "announces"),
    "host of 2 million maps": (image(*[packed("host", raw) for raw in (
        b"\x81\xa1x\xdd" + (2_000_000 - 200).to_bytes(4, "big"), *[b"\x80" * MIB] * 2)]), ""),
    "points cut": (image(block("points", b"\x96\x00\x00")), "cut short"),
    "point of five": (image(block("points", msgpack.packb([0, 0, 0, [], b""]))), "array of 6"),
    "point of kind 3": (image(point(kind=3)), "kind"),
    "point with text types": (image(point(stack_types="\x7f")), "binary"),
    "point with a reference": (image(point(stack_types=b"\x70")), "do not go together"),
    "point with an unknown type": (image(point(stack_types=b"\x6e")), "type code"),
    "point with more locals than types": (image(point(live=[0, 1], live_types=b"\x7f")), "number"),
    "point with locals out of order": (image(point(live=[1, 0], live_types=b"\x7f\x7f")), "order"),
    "points of 60 million types": (image(*[packed("points", raw) for raw in (
        b"\x96\x00\x00\x00\x90\xc4\x00\xc6" + (60 * MIB).to_bytes(4, "big"), *[b"\x7f" * MIB] * 60)]), "values"),
    "frame without point": (image(point(), block("frames", b"\1\0\0\0"), frames=1), "not in the table"),
    "frame at point 2^32-1": (image(point(), block("frames", U32), frames=1), "not in the table"),
    "frame without values": (
        image(point(stack_types=b"\x7f"), block("frames", b"\0\0\0\0"), frames=1), "another length"),
    "values without frame": (image(block("frames", b"\0\0\0\0")), "another length"),
    "outer frame not waiting": (image(point(), block("frames", bytes(8)), frames=2), "innermost"),
    "slots out of order": (
        image(block("tables", b"\1\0\0\0\0\0\0\0" + bytes(8)), tables=[[0, 5, 2]]), "order"),
    "slot beyond the table": (image(block("tables", b"\5\0\0\0" + bytes(4)), tables=[[0, 5, 1]]), "beyond"),
    # pages
    "pages of no memory": (image(block("zero", b"", [0, 0, 1])), "no memory"),
    "pages without run": (image(block("zero", b"", [0]), memories=[[0, 1, 0, 1]]), "which"),
    "half a run": (image(block("zero", b"", [0, 0, 1, 1]), memories=[[0, 1, 0, 1]]), "which"),
    "empty run": (image(block("zero", b"", [0, 0, 0]), memories=[[0, 1, 0, 0]]), "empty"),
    "run beyond": (image(block("zero", b"", [0, 15, 2]), memories=[[0, 1, 0, 2]]), "beyond"),
    "run of 2^32": (image(block("zero", b"", [0, 1, 2**32 - 1]), memories=[[0, 1, 0, 2**32 - 1]]), "beyond"),
    "runs out of order": (
        image(block("zero", b"", [0, 1, 1, 0, 1]), memories=[[0, 1, 0, 2]]), "out of order, empty"),
    "runs out of order over blocks": (
        image(block("zero", b"", [0, 1, 1]), block("zero", b"", [0, 0, 1]), memories=[[0, 1, 0, 2]]),
        "out of order, empty"),
    "more zero pages": (image(block("zero", b"", [0, 0, 3]), memories=[[0, 1, 0, 2]]), "more pages"),
    "zero run with content": (image(block("zero", b"x", [0, 0, 1]), memories=[[0, 1, 0, 1]]), "size"),
    "page too short": (image(block("pages", bytes(4095), [0, 0, 1]), memories=[[0, 1, 1, 0]]), "size"),
    "page without memory": (image(block("pages", bytes(4096), [1, 0, 1]), memories=[[0, 1, 1, 0]]), "no memory"),
    "page both zero and data": (image(block("zero", b"", [0, 0, 1]), block("pages", bytes(4096), [0, 0, 1]),
                                      memories=[[0, 1, 1, 1]]), "overlap"),
}


@pytest.mark.parametrize("what", sorted(REFUSED))
def test_refused(what: str) -> None:
    """Each refusal has its own reason and an offset, and takes no long time."""
    data, reason = REFUSED[what]
    start = time.process_time()
    with pytest.raises(ImageError, match=reason or None) as caught:
        decode(data)
    assert time.process_time() - start < 10
    assert 0 <= caught.value.fields["offset"] <= len(data)  # type: ignore[operator]


def test_the_parts_of_hostile_images_are_right() -> None:
    """The twin: the same pieces, put together as they should be, pass."""
    good = image(
        block("weather", b"rain", [1]), packed("host", b"\x81\xa1x" + nested(60)), point(stack_types=b"\x7f"),
        block("frames", bytes(8)), block("tables", b"\1\0\0\0\4\0\0\0" + b"\0\0\0\0" + U32),
        block("zero", b"", [0, 1, 1, 3, 2]), block("zero", b"", [0, 5, 1]), block("pages", bytes(4096), [0, 0, 1]),
        frames=1, tables=[[0, 5, 2]], memories=[[0, 1, 1, 4]])
    decoded = decode(good)
    assert decoded.tables[0].changed == ((1, 0), (4, None))
    assert decoded.memories[0].zero == ((1, 1), (3, 3))
    assert [frame.operands()[0].bits for frame in decoded.frames] == [0]
    assert decode(encode(decoded)).frames == decoded.frames


CAPPED: Final = """
import json, resource, sys
sys.path.insert(0, sys.argv[1])
from wasmckpt.errors import ImageError
from wasmckpt.formats import Limits, decode
from wasmckpt.formats.limits import DEFAULT_LIMITS
data = sys.stdin.buffer.read()
status = open("/proc/self/statm").read().split()
now = int(status[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + int(sys.argv[2]), now + int(sys.argv[2])))
limits = Limits(**json.loads(sys.argv[3])) if sys.argv[3] else DEFAULT_LIMITS
try:
    decode(data, limits=limits)
    print("decoded")
except ImageError as error:
    print(error.what)
"""


def capped(data: bytes, memory: int, limits: dict[str, int] | None = None) -> str:
    """What a process says that may take ``memory`` bytes more than it had before decoding."""
    root = wasmckpt.__path__[0] + "/.."
    done = subprocess.run(
        [sys.executable, "-c", CAPPED, root, str(memory), json.dumps(limits) if limits else ""],
        input=data, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def page_bomb(mib: int) -> bytes:
    """An image of a few hundred kilobytes whose pages take ``mib`` MiB."""
    raw = zstandard.ZstdCompressor().compress(b"\1" * MIB)
    blocks = [block("pages", raw, [0, 256 * n, 256], 1, MIB) for n in range(mib)]
    return image(*blocks, memories=[[0, 65536, 256 * mib, 0]])


@pytest.mark.parametrize(("data", "memory", "limits", "said"), [
    # few bytes that announce much: refused on the announcement, next to nothing is allocated
    (REFUSED["bytes of 2^32"][0], 16 * MIB, None, "longer than"),
    (REFUSED["array of 2^32"][0], 16 * MIB, None, "announces"),
    (REFUSED["2^32 frames announced"][0], 16 * MIB, None, "allows"),
    (REFUSED["zstd bomb"][0], 16 * MIB, None, "differ"),
    (REFUSED["header nested 10,000 deep"][0], 16 * MIB, None, "nested"),
    # 512 MiB that zstd makes out of 30 kB: refused by the reader's limit, or by what there is
    (page_bomb(512), 16 * MIB, {"memory": 64 * MIB}, "allows"),
    (page_bomb(512), 256 * MIB, None, "more memory than there is"),
    (page_bomb(64), 192 * MIB, {"memory": 64 * MIB}, "decoded"),
    # the most values that the default allows, each as costly as it can be
    (REFUSED["host of 2 million maps"][0], 512 * MIB, None, ""),
    (REFUSED["points of 60 million types"][0], 256 * MIB, None, "values"),
], ids=["bytes", "array", "frames", "zstd", "nested", "pages-limit", "pages-memory", "pages-fit", "maps", "types"])
def test_memory_is_bounded(data: bytes, memory: int, limits: dict[str, int] | None, said: str) -> None:
    """A hostile image costs no more memory than the limits allow, and no memory at all is an `ImageError` too."""
    assert len(data) < 500_000
    assert said in capped(data, memory, limits)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-2**63, 2**64 - 1) | st.floats() | st.text(max_size=4)
    | st.binary(max_size=33) | st.just(SHA),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
SMALL = st.integers(0, 20)
FIELDS: Final[dict[str, st.SearchStrategy[object]]] = {
    "frames": SMALL,
    "globals": st.lists(st.tuples(SMALL, st.sampled_from([0x7F, 0x7D, 0x70]), st.binary(min_size=4, max_size=4))),
    "tables": st.lists(st.tuples(SMALL, SMALL, SMALL), max_size=3),
    "memories": st.lists(st.tuples(SMALL, SMALL, SMALL, SMALL), max_size=3),
    "dropped_data": st.lists(SMALL, max_size=3),
    "required": st.lists(st.sampled_from(["parent", "x"]), max_size=2),
    "optional": st.lists(st.sampled_from(["module", "x"]), max_size=2),
    "parent": st.fixed_dictionaries({"sha256": st.just(SHA), "position": SMALL}),
    "module": st.fixed_dictionaries({"sha256": st.just(SHA), "size": SMALL}),
    "weather": PLAIN,
}
KINDS: Final = ["host", "points", "frames", "tables", "module", "zero", "pages", "weather"]
POINTS: Final = st.lists(st.tuples(SMALL, SMALL, st.integers(0, 3), st.lists(SMALL, max_size=2),
                                   st.sampled_from([b"", b"\x7f", b"\x7e\x7c"]),
                                   st.sampled_from([b"", b"\x7f", b"\x7e\x7c"])), max_size=3)


def pack_all(values: list[Any]) -> bytes:
    return b"".join([msgpack.packb(value) for value in values])


def is_total(data: bytes) -> None:
    """Either an error with an offset, or an image that can be written and read again."""
    try:
        decoded = decode(data)
    except ImageError as error:
        where = error.fields["offset"]
    else:
        event("accepted")
        where = 0
        assert encode(decode(encode(decoded))) == encode(decoded)
    assert isinstance(where, int)


@st.composite
def raw_blocks(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(KINDS))
    raw: bytes = draw({
        "host": PLAIN.map(msgpack.packb), "points": POINTS.map(pack_all),
        "zero": st.just(b""), "pages": SMALL.map(lambda n: b"\0\1" * 2048 * n),
    }.get(kind, st.lists(st.sampled_from([b"\0\0\0\0", b"\1\0\0\0", U32, b"x"]), max_size=8).map(b"".join)))
    where = draw(st.lists(SMALL, max_size=7)) if kind in ("zero", "pages", "weather") else []
    return packed(kind, raw, where) if draw(st.booleans()) else block(kind, raw, where)


@given(st.dictionaries(st.sampled_from(sorted(FIELDS)), st.none(), max_size=4).flatmap(
    lambda chosen: st.fixed_dictionaries({name: FIELDS[name] | PLAIN for name in chosen})),
    st.lists(raw_blocks(), max_size=6), st.booleans())
def test_sealed_nonsense(header: dict[str, object], blocks: list[bytes], in_order: bool) -> None:
    """Well-formed msgpack with a right digest that means nothing, or means something: an image or an `ImageError`."""
    if in_order:
        blocks.sort(key=lambda raw: KINDS.index(msgpack.unpackb(raw)[0]))
    is_total(image(*blocks, **header))


@given(st.data())
def test_sealed_damage(data: st.DataObject) -> None:
    """Damage with the digest made right again: what the checks behind it take is an image that can be written."""
    good = encode(IMAGES[data.draw(st.sampled_from(sorted(IMAGES)))])[:-34]
    at = data.draw(st.integers(9, len(good) - 1))
    bad = good[:at] + data.draw(st.binary(max_size=3)) + good[at + data.draw(st.integers(0, 3)):]
    is_total(seal(bad))
