"""Images to bytes and back. The layout is in `wasmckpt.formats` and, byte by byte, in SPEC.md.

Reading is total: any bytes give an image or an `ImageError`, within the reader's `Limits`, before anything runs.

Why it is laid out so. One msgpack map with everything in it would need all of the image in memory on both sides, and
who only wants to know what it is would read gigabytes. Hence a sequence: the header counts what follows, so that each
length is compared with the limits before memory is spent, then comes what is small, then the module, then pages.
Frames are columns: one msgpack value for each local costs more time than all the rest of a deep recursion's image.
Blocks are bounded, so that a zstd bomb is no larger than a block; each is stored as it is if packing does not pay, so
that random bytes cost nothing extra. The digest is last because only then is it known in a stream; it is against
accidents, while the checks are against malice, for whoever can make an image can make its digest too.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import TypeVar

from wasmckpt.errors import ImageError
from wasmckpt.formats import shape
from wasmckpt.formats.blocks import BlockReader, BlockWriter
from wasmckpt.formats.features import (
    BY_TYPE,
    CANONICAL_NANS,
    MAGIC,
    MODULE_INSIDE,
    PARENT,
    STORED,
    VERSION,
    by_type,
    check_required,
    optional_of,
    required_of,
)
from wasmckpt.formats.frames import pack_frames, pack_points, point_numbers, unpack_frames, unpack_points
from wasmckpt.formats.image import (
    PAGE_SIZE,
    Entry,
    GlobalState,
    Image,
    MemoryState,
    ModuleRef,
    ParentRef,
    Point,
    Producer,
)
from wasmckpt.formats.limits import DEFAULT_LIMITS, Budget, Limits
from wasmckpt.formats.node import MAX_U64, Node, read_value
from wasmckpt.formats.packed import pack, unpack
from wasmckpt.formats.pages import (
    Announced,
    Layout,
    PageBlock,
    PageCounts,
    layout,
    read_runs,
    stream_runs,
    write_runs,
)
from wasmckpt.formats.stream import BytesSource, FileSource, Readable, Sink, Writable
from wasmckpt.formats.tables import TableHead, pack_tables, unpack_tables
from wasmckpt.lazydata import dataclass, replace
from wasmckpt.wasm.values import WIDTH, Value

__all__ = [
    "Header", "ImageStream", "decode", "encode", "read_header", "read_image", "read_linked", "write_image",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Header:
    """What can be known of an image without reading its pages.

    Attributes:
        version: of the file format.
        required: features that a reader must know.
        optional: features that a reader may ignore.
        image: the image, but for the module's content and the pages of memories.
        memories: what the image holds of each memory.
    """

    version: int
    required: tuple[str, ...]
    optional: tuple[str, ...]
    image: Image
    memories: tuple[Announced, ...]


def encode(image: Image) -> bytes:
    """The image as bytes; the same state gives the same bytes. Raises `ImageError` as `write_image` does."""
    file = io.BytesIO()
    write_image(image, file)
    return file.getvalue()


def decode(data: bytes, *, limits: Limits = DEFAULT_LIMITS) -> Image:
    """The image that the bytes are. Raises `ImageError` as `read_image` does."""
    return read_image(io.BytesIO(data), limits=limits)


def write_image(image: Image, file: Writable, *, packed: bool = True) -> bytes:
    """Write the image in one pass, in pieces of about 1 MiB.

    Args:
        packed: False stores blocks as they are: for a file in memory that is read at once, where packing costs more
            time than all the rest.

    Returns:
        The SHA-256 of all that was written: what a child's `ParentRef` names.

    Raises:
        ImageError: the image breaks a rule that every image keeps (`shape.check`); nothing was written.
    """
    shape.check(image)
    points, indices = point_numbers(image.frames)
    shape.check_points(points)
    layouts = [layout(memory) for memory in image.memories]
    header, host = pack(_header_fields(image, points, layouts)), pack(image.host) if image.host else b""

    sink = Sink(file)
    sink.write(MAGIC + pack(VERSION) + header)
    blocks = BlockWriter(sink, packed=packed)
    blocks.stream("host", host)
    blocks.stream("points", pack_points(points))
    blocks.stream("frames", pack_frames(image.frames, indices))
    blocks.stream("tables", pack_tables(image.tables))
    blocks.stream("module", image.module.content or b"")
    write_runs(blocks, layouts)
    blocks.finish()
    return sink.sha.digest()


def _header_fields(image: Image, points: list[Point], layouts: list[Layout]) -> dict[str, object]:
    fields: dict[str, object] = {
        "dropped_data": image.dropped_data,
        "dropped_elem": image.dropped_elem,
        "entry": {
            "arguments": [[value.type, _bytes_of(value)] for value in image.entry.arguments],
            "current": image.entry.current,
            "steps": image.entry.steps,
        },
        "frames": len(image.frames),
        "globals": [[g.index, g.type, _bytes_of(Value(g.type, g.bits))] for g in image.globals],
        "memories": [[memory.index, memory.pages, pages.counts.data, pages.counts.zero]
                     for memory, pages in zip(image.memories, layouts, strict=True)],
        "module": {"sha256": image.module.sha256, "size": image.module.size},
        "optional": optional_of(image),
        "producer": {"machine": image.producer.machine, "runtime": image.producer.runtime,
                     "runtime_version": image.producer.runtime_version, "tool": image.producer.tool},
        "required": required_of(image, points),
        "tables": [[table.index, table.size, len(table.changed)] for table in image.tables],
    }
    if image.parent is not None:
        fields["parent"] = {"position": image.parent.position, "sha256": image.parent.sha256}
    return fields


def _bytes_of(value: Value) -> bytes:
    return value.bits.to_bytes(WIDTH[value.type], "little")


def read_image(file: Readable, *, limits: Limits = DEFAULT_LIMITS) -> Image:
    """Read a whole image, and check its digest and the rules that every image keeps.

    Args:
        file: read from where it stands to its end.
        limits: what the caller is ready to take in.

    Raises:
        ImageError: not an image, damaged, hostile, of a newer version, or above the limits; with ``offset`` in bytes.
    """
    return read_linked(file, limits=limits)[0]


def read_linked(file: Readable, *, limits: Limits = DEFAULT_LIMITS) -> tuple[Image, bytes]:
    """As `read_image`; gives also the SHA-256 of the whole file, which a child's `ParentRef` names."""
    return _total(_read_image, file, limits)


def read_header(file: Readable, *, limits: Limits = DEFAULT_LIMITS) -> Header:
    """Read the header and the small parts, but neither the module nor the pages, and not to the digest.

    Raises:
        ImageError: as `read_image`, for the part that is read.
    """
    return _total(_read_header, file, limits)


class ImageStream:
    """An image whose pages come one block at a time, so that a memory of any size costs a mebibyte.

    Args:
        file: read from where it stands. limits: what the caller is ready to take in.

    Raises:
        ImageError: as `read_image`, for what stands before the pages; `blocks` raises it for the rest.

    Attributes:
        image: all but the pages: of its memories it has the sizes.
        sha256: of all that was read so far; after the last block, of the whole file.
    """

    def __init__(self, file: Readable, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._source = FileSource(file)
        self.image, self._reader, self._announced = _total(self._begin, file, limits)

    def _begin(self, _: Readable, limits: Limits) -> tuple[Image, BlockReader, tuple[Announced, ...]]:
        reader = BlockReader(self._source, limits)
        header = _read_before_pages(self._source, reader, limits)
        image = replace(header.image, memories=tuple([MemoryState(m.index, m.pages) for m in header.memories]))
        shape.check(image)
        return image, reader, header.memories

    @property
    def sha256(self) -> bytes:
        return self._source.sha.digest()

    def blocks(self) -> Iterator[PageBlock]:
        """Zero pages of all memories, then the others; at the end all of the file has been checked. Call it once."""
        return stream_runs(self._reader, self._announced, self._limits)


def _total(read: Callable[[Readable, Limits], T], file: Readable, limits: Limits) -> T:
    try:
        return read(file, limits)
    except ImageError as error:
        error.fields.setdefault("offset", len(MAGIC) + 1)  # found in the image as a whole: the header's beginning
        raise
    except MemoryError:
        raise ImageError("the image needs more memory than there is", offset=0,
                         hint="read it with lower limits") from None


def _read_image(file: Readable, limits: Limits) -> tuple[Image, bytes]:
    source = FileSource(file)
    reader = BlockReader(source, limits)
    header = _read_before_pages(source, reader, limits)
    image = replace(header.image, memories=read_runs(reader, header.memories, limits))
    shape.check(image)
    return image, source.sha.digest()


def _read_before_pages(source: FileSource, reader: BlockReader, limits: Limits) -> Header:
    header = _read_parts(source, reader, limits)
    if MODULE_INSIDE in header.optional:
        content, _ = reader.stream("module", header.image.module.size)
        return replace(header, image=replace(header.image, module=replace(header.image.module, content=content)))
    return header


def _read_header(file: Readable, limits: Limits) -> Header:
    source = FileSource(file)
    header = _read_parts(source, BlockReader(source, limits), limits)
    shape.check(header.image)
    return header


def _read_parts(source: FileSource, reader: BlockReader, limits: Limits) -> Header:
    """Everything before the module and the pages."""
    version = _read_version(source)
    budget = Budget(limits, limits.header)
    start = source.offset
    root = Node(unpack(source, budget), "", start)
    required, optional = root["required"].texts(), root["optional"].texts()
    check_required(required, start)
    parent = _parent_of(root, required)
    module = ModuleRef(root["module"]["sha256"].binary(32), root["module"]["size"].uint(MAX_U64))
    if MODULE_INSIDE in optional:
        limits.check("module", module.size, start)
    memories = _announced(root["memories"])
    limits.check("memory", sum([memory.counts.data for memory in memories]) * PAGE_SIZE, start)
    heads: list[TableHead] = []
    for row in root["tables"].items():
        index, size, changed = row.row(3)
        heads.append((index.uint(), size.uint(), changed.uint()))
    slots = sum([count for _, _, count in heads])
    limits.check("table_slots", slots, start)
    frames = root["frames"].uint()
    limits.check("frames", frames, start)

    budget.text = limits.host
    data, at = reader.stream("host", limits.host)
    host = _host_of(data, at, budget)
    budget.text = limits.host
    data, at = reader.stream("points", limits.host)
    points = unpack_points(data, at, budget)
    shape.check_points(points)
    data, at = reader.stream("frames", 4 * frames + limits.frame_bytes)
    stack = unpack_frames(data, at, frames, points)
    data, at = reader.stream("tables", 8 * slots)
    image = Image(
        module=module,
        producer=_producer_of(root["producer"]),
        entry=_entry_of(root["entry"]),
        frames=stack,
        globals=tuple([_global_of(row) for row in root["globals"].items()]),
        tables=unpack_tables(data, at, heads),
        memories=(),
        dropped_data=root["dropped_data"].uints(),
        dropped_elem=root["dropped_elem"].uints(),
        host=host,
        parent=parent,
        canonical_nans=CANONICAL_NANS in required,
    )
    for name in sorted(by_type(image, points) ^ (BY_TYPE.keys() & required)):
        raise root.error(f"the types of values and the required feature {name} do not go together")
    return Header(version, required, optional, image, memories)


def _read_version(source: FileSource) -> int:
    magic = source.take(len(MAGIC))
    if magic == STORED:
        raise ImageError("this is the file of an image in a store, whose pages are elsewhere", offset=0,
                         hint="take it from there: wasmckpt store export")
    if magic != MAGIC:
        raise ImageError("this is not an image", offset=0,
                         hint="a transfer as text damages images" if magic[1:6] == MAGIC[1:6] else "")
    at = source.offset
    budget = Budget(DEFAULT_LIMITS, text=0, nodes=1)
    version = Node(unpack(source, budget), "version", at).uint()
    if version > VERSION:
        raise ImageError(f"the image is of version {version}, newer than {VERSION}", offset=at,
                         hint="use a newer wasmckpt")
    if version != VERSION:
        raise ImageError(f"there is no version {version} of images", offset=at)
    return version


def _parent_of(root: Node, required: tuple[str, ...]) -> ParentRef | None:
    if root.has(PARENT) != (PARENT in required):
        raise root.error("the field parent and the required feature parent do not go together")
    if not root.has(PARENT):
        return None
    return ParentRef(root[PARENT]["sha256"].binary(32), root[PARENT]["position"].uint())


def _announced(rows: Node) -> tuple[Announced, ...]:
    memories: list[Announced] = []
    for row in rows.items():
        index, pages, data, zero = row.row(4)
        memories.append(Announced(index.uint(), pages.uint(shape.MAX_PAGES), PageCounts(data.uint(), zero.uint())))
    return tuple(memories)


def _host_of(data: bytes, start: int, budget: Budget) -> dict[str, object]:
    if not data:
        return {}
    source = BytesSource(data, "host", start)
    host = Node(unpack(source, budget), "host", start).plain_map()
    if not source.at_end():
        raise source.error("bytes follow the host state")
    return host


def _producer_of(node: Node) -> Producer:
    return Producer(node["tool"].text(), node["runtime"].text(), node["runtime_version"].text(),
                    node["machine"].text())


def _entry_of(node: Node) -> Entry:
    arguments = tuple([read_value(*row.row(2)) for row in node["arguments"].items()])
    return Entry(node["steps"].texts(), node["current"].uint(), arguments)


def _global_of(row: Node) -> GlobalState:
    index, type_, bits = row.row(3)
    value = read_value(type_, bits)
    return GlobalState(index.uint(), value.type, value.bits)
