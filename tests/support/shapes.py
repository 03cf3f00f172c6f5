"""Requests that two readers of HTTP might read differently, and what `serve` answers to each."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

CHUNKED: Final = b"transfer-encoding: chunked"
LAST: Final = b"0\r\n\r\n"
EMPTY: Final = b"content-length: 0"
TWO: Final = b"content-length: 2"
REFUSED: Final = (400,)
UNKNOWN: Final = (404,)
UNSIGNED: Final = (403, 200)
"""A request that ends where it says, without a signature; and the one behind it."""


class Shape(NamedTuple):
    """Bytes of one request, and the statuses that they and a question behind them get."""

    data: bytes
    statuses: tuple[int, ...]


def _post(
    *lines: bytes,
    body: bytes = b"",
    path: bytes = b"/webhooks/stripe",
    version: bytes = b"HTTP/1.1",
    method: bytes = b"POST",
) -> bytes:
    head = [b"%b %b %b" % (method, path, version), b"host: x", *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def _length(value: bytes, *others: bytes, body: bytes = b"{}") -> bytes:
    return _post(b"content-length: " + value, *others, body=body)


def _coding(value: bytes, *others: bytes) -> bytes:
    return _post(b"transfer-encoding: " + value, *others, body=LAST)


def _chunks(body: bytes) -> bytes:
    return _post(CHUNKED, body=body)


def _path(path: bytes) -> bytes:
    return _post(EMPTY, path=path)


def _version(version: bytes) -> bytes:
    return _post(EMPTY, version=version)


LENGTHS: Final = {
    "none": Shape(_post(), UNSIGNED),
    "with chunks": Shape(_length(b"5", CHUNKED, body=LAST), REFUSED),
    "after chunks": Shape(_coding(b"chunked", b"content-length: 5"), REFUSED),
    "after unknown coding": Shape(_coding(b"xchunked", b"content-length: 5"), REFUSED),
    "twice the same": Shape(_length(b"2", TWO), REFUSED),
    "twice": Shape(_length(b"2", b"content-length: 3", body=b"{} "), REFUSED),
    "a list": Shape(_length(b"2, 2"), REFUSED),
    "plus": Shape(_length(b"+2"), REFUSED),
    "minus": Shape(_length(b"-2"), REFUSED),
    "hex": Shape(_length(b"0x2"), REFUSED),
    "exponent": Shape(_length(b"2e0"), REFUSED),
    "empty": Shape(_length(b"", body=b""), REFUSED),
    "space within": Shape(_length(b"1 2"), REFUSED),
    "over 64 bits": Shape(_length(b"18446744073709551618"), REFUSED),
    "space behind": Shape(_length(b"2 "), UNSIGNED),
    "zeros before": Shape(_length(b"002"), UNSIGNED),
    "space before the colon": Shape(_post(b"content-length : 2", body=b"{}"), REFUSED),
    "tab before the colon": Shape(_post(b"content-length\t: 2", body=b"{}"), REFUSED),
    "folded": Shape(_post(b"x: a\r\n content-length: 2", TWO, body=b"{}"), REFUSED),
    "folded first": Shape(b"POST / HTTP/1.1\r\n content-length: 2\r\n\r\n{}", REFUSED),
    "underscore": Shape(_post(b"content_length: 9", TWO, body=b"{}"), UNSIGNED),
}
CODINGS: Final = {
    "chunked": Shape(_coding(b"chunked"), UNSIGNED),
    "capitals": Shape(_coding(b"CHUNKED"), UNSIGNED),
    "two spaces": Shape(_coding(b" chunked"), UNSIGNED),
    "tab": Shape(_post(b"transfer-encoding:\tchunked", body=LAST), UNSIGNED),
    "chunked, identity": Shape(_coding(b"chunked, identity"), REFUSED),
    "identity": Shape(_coding(b"identity"), REFUSED),
    "identity with length": Shape(_length(b"2", b"transfer-encoding: identity"), REFUSED),
    "chunked twice": Shape(_coding(b"chunked, chunked"), REFUSED),
    "two fields": Shape(_coding(b"chunked", CHUNKED), REFUSED),
    "identity in a second field": Shape(
        _coding(b"chunked", b"transfer-encoding: identity"), REFUSED
    ),
    "identity in a first field": Shape(_coding(b"identity", CHUNKED), (501,)),
    "gzip, chunked": Shape(_coding(b"gzip, chunked"), (501,)),
    "unknown": Shape(_coding(b"xchunked"), REFUSED),
    "vertical tab": Shape(_coding(b"\x0bchunked"), REFUSED),
    "tab behind": Shape(_coding(b"chunked\t"), REFUSED),
    "quoted": Shape(_coding(b'"chunked"'), REFUSED),
    "parameter": Shape(_coding(b"chunked;q=1"), REFUSED),
    "folded": Shape(_post(b"transfer-encoding:\r\n chunked", body=LAST), REFUSED),
    "space before the colon": Shape(_post(b"transfer-encoding : chunked", body=LAST), REFUSED),
    "underscore": Shape(_post(b"transfer_encoding: chunked", TWO, body=b"{}"), UNSIGNED),
    "behind a bare line feed": Shape(
        _post(b"x: y\ntransfer-encoding: chunked", b"content-length: 5", body=LAST), REFUSED
    ),
    "HTTP/1.0": Shape(_post(CHUNKED, body=LAST, version=b"HTTP/1.0"), (403,)),
    "HTTP/1.0 kept": Shape(
        _post(CHUNKED, b"connection: keep-alive", body=LAST, version=b"HTTP/1.0"), (403,)
    ),
}
CHUNKS: Final = {
    "extension": Shape(_chunks(b"2;a=b\r\n{}\r\n0\r\n\r\n"), UNSIGNED),
    "zeros before": Shape(_chunks(b"002\r\n{}\r\n000\r\n\r\n"), UNSIGNED),
    "trailer": Shape(_chunks(b"0\r\nstripe-signature: t=1,v1=0\r\n\r\n"), UNSIGNED),
    "trailer with a length": Shape(_chunks(b"0\r\ncontent-length: 9\r\n\r\n"), REFUSED),
    "trailer with a coding": Shape(_chunks(b"0\r\ntransfer-encoding: chunked\r\n\r\n"), REFUSED),
    "line end in an extension": Shape(_chunks(b'2;a="\r\n"\r\n{}\r\n0\r\n\r\n'), REFUSED),
    "line feed after an extension": Shape(_chunks(b"2;a\n{}\r\n0\r\n\r\n"), REFUSED),
    "carriage return in an extension": Shape(_chunks(b"2;a\rx\r\n{}\r\n0\r\n\r\n"), REFUSED),
    "line feeds": Shape(_chunks(b"2\n{}\n0\n\n"), REFUSED),
    "line feed after data": Shape(_chunks(b"2\r\n{}\n0\r\n\r\n"), REFUSED),
    "carriage returns": Shape(_chunks(b"2\r{}\r0\r\r"), REFUSED),
    "over 64 bits": Shape(_chunks(b"10000000000000002\r\n{}\r\n0\r\n\r\n"), REFUSED),
    "0x": Shape(_chunks(b"0x2\r\n{}\r\n0\r\n\r\n"), REFUSED),
    "plus": Shape(_chunks(b"+2\r\n{}\r\n0\r\n\r\n"), REFUSED),
    "minus": Shape(_chunks(b"-2\r\n{}\r\n0\r\n\r\n"), REFUSED),
    "space behind": Shape(_chunks(b"2 \r\n{}\r\n0\r\n\r\n"), REFUSED),
    "space before": Shape(_chunks(b" 2\r\n{}\r\n0\r\n\r\n"), REFUSED),
    "no size": Shape(_chunks(b"\r\n{}\r\n0\r\n\r\n"), REFUSED),
    "too short": Shape(_chunks(b"1\r\n{}\r\n0\r\n\r\n"), REFUSED),
    "too long": Shape(_chunks(b"3\r\n{}\r\n0\r\n\r\n"), REFUSED),
}
HEADS: Final = {
    "line feeds": Shape(b"POST / HTTP/1.1\nhost: x\ncontent-length: 2\n\n{}", REFUSED),
    "line feed at the end": Shape(b"POST / HTTP/1.1\r\nhost: x\r\n\n", REFUSED),
    "line feed within": Shape(_post(b"a: b\nc: d", EMPTY), REFUSED),
    "carriage return within": Shape(_post(b"a: b\rc: d", EMPTY), REFUSED),
    "two carriage returns": Shape(_post(b"a: b\r", EMPTY), REFUSED),
    "NUL in a value": Shape(_post(b"a: b\0c", EMPTY), REFUSED),
    "NUL in a name": Shape(_post(b"a\0: b", EMPTY), REFUSED),
    "NUL in the path": Shape(_path(b"/webhooks/\0stripe"), REFUSED),
    "control character": Shape(_post(b"a: b\x1bc", EMPTY), REFUSED),
    "delete character": Shape(_post(b"a: b\x7fc", EMPTY), REFUSED),
    "space in a name": Shape(_post(b"a b: c", EMPTY), REFUSED),
    "no name": Shape(_post(b": c", EMPTY), REFUSED),
    "no colon": Shape(_post(b"abc", EMPTY), REFUSED),
    "name in UTF-8": Shape(_post(b"\xc3\xa4: c", EMPTY), REFUSED),
    "name in brackets": Shape(_post(b"(x): c", EMPTY), REFUSED),
    "space before the method": Shape(b" " + _post(EMPTY), REFUSED),
    "blank lines before": Shape(b"\r\n\r\n" + _post(EMPTY), UNSIGNED),
    "no host": Shape(_post(EMPTY).replace(b"host: x\r\n", b""), UNSIGNED),
    "two hosts": Shape(_post(EMPTY, b"host: y"), UNSIGNED),
    "method in small letters": Shape(_post(EMPTY, method=b"post"), REFUSED),
    "unknown method": Shape(_post(EMPTY, method=b"P0ST"), REFUSED),
    "TRACE": Shape(_post(method=b"TRACE"), (405,)),
    "CONNECT": Shape(b"CONNECT evil:443 HTTP/1.1\r\nhost: x\r\n\r\n", REFUSED),
    "GET with a body": Shape(_post(TWO, body=b"{}", method=b"GET", path=b"/healthz"), (200, 200)),
    "expects something else": Shape(_post(b"expect: 200-ok", TWO, body=b"{}"), UNSIGNED),
    "upgrade to h2c": Shape(
        _post(b"connection: upgrade, http2-settings", b"upgrade: h2c", TWO, body=b"{}"), REFUSED
    ),
    "upgrade to websockets": Shape(
        _post(
            b"connection: upgrade", b"upgrade: websocket", EMPTY, method=b"GET", path=b"/healthz"
        ),
        (200,),
    ),
}
PATHS: Final = {
    "query": Shape(_path(b"/webhooks/stripe?x=1"), UNSIGNED),
    "empty query": Shape(_path(b"/webhooks/stripe?"), UNSIGNED),
    "absolute": Shape(_path(b"http://evil/webhooks/stripe"), UNSIGNED),
    "absolute with a user": Shape(_path(b"http://u:p@evil:1/webhooks/stripe"), UNSIGNED),
    "two slashes": Shape(_path(b"//webhooks/stripe"), UNKNOWN),
    "slash behind": Shape(_path(b"/webhooks/stripe/"), UNKNOWN),
    "dots": Shape(_path(b"/webhooks/../webhooks/stripe"), UNKNOWN),
    "one dot": Shape(_path(b"/./webhooks/stripe"), UNKNOWN),
    "encoded dots": Shape(_path(b"/webhooks/%2e%2e/webhooks/stripe"), UNKNOWN),
    "encoded slash": Shape(_path(b"/webhooks%2Fstripe"), UNKNOWN),
    "encoded letter": Shape(_path(b"/%77ebhooks/stripe"), UNKNOWN),
    "encoded last letter": Shape(_path(b"/webhooks/strip%65"), UNKNOWN),
    "encoded metrics": Shape(_post(method=b"GET", path=b"/%6detrics"), UNKNOWN),
    "encoded api": Shape(_post(method=b"GET", path=b"/%61pi/v1/events"), UNKNOWN),
    "capitals": Shape(_path(b"/WEBHOOKS/stripe"), UNKNOWN),
    "capital": Shape(_path(b"/webhooks/Stripe"), UNKNOWN),
    "parameter": Shape(_path(b"/webhooks/stripe;x"), UNKNOWN),
    "encoded NUL": Shape(_path(b"/webhooks/stripe%00"), UNKNOWN),
    "encoded line end": Shape(_path(b"/webhooks/stripe%0d%0a"), UNKNOWN),
    "lone percent": Shape(_path(b"/webhooks/stripe%"), UNKNOWN),
    "fragment": Shape(_path(b"/webhooks/stripe#x"), REFUSED),
    "star": Shape(_path(b"*"), UNKNOWN),
    "no slash": Shape(_path(b"webhooks/stripe"), REFUSED),
    "backslashes": Shape(_path(b"\\webhooks\\stripe"), REFUSED),
    "not ASCII": Shape(_path(b"/webhooks/str\xc3\xaepe"), REFUSED),
    "no path": Shape(_path(b"http://"), REFUSED),
}
VERSIONS: Final = {
    "1.0": Shape(_version(b"HTTP/1.0"), (403,)),
    "0.9": Shape(_version(b"HTTP/0.9"), REFUSED),
    "0.9 without a word": Shape(b"GET /healthz\r\n", REFUSED),
    "1.2": Shape(_version(b"HTTP/1.2"), REFUSED),
    "2.0": Shape(_version(b"HTTP/2.0"), REFUSED),
    "3.0": Shape(_version(b"HTTP/3.0"), REFUSED),
    "no dot": Shape(_version(b"HTTP/11"), REFUSED),
    "small letters": Shape(_version(b"http/1.1"), REFUSED),
    "space behind": Shape(_version(b"HTTP/1.1 "), REFUSED),
    "none": Shape(_version(b""), REFUSED),
    "preface of HTTP/2": Shape(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", REFUSED),
    "TLS": Shape(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", REFUSED),
}
ENCODINGS: Final = {
    name: Shape(_length(b"2", b"content-encoding: " + name.encode()), statuses)
    for name, statuses in {
        "gzip": (415,),
        "GZIP": (415,),
        "deflate": (415,),
        "br": (415,),
        "zstd": (415,),
        "gzip, identity": (415,),
        "unknown": (415,),
        "identity": UNSIGNED,
        "Identity": UNSIGNED,
        "": UNSIGNED,
    }.items()
} | {
    "identity, then gzip": Shape(
        _length(b"2", b"content-encoding: identity", b"content-encoding: gzip"), (415,)
    ),
    "gzip, then identity": Shape(
        _length(b"2", b"content-encoding: gzip", b"content-encoding: identity"), (415,)
    ),
}
SHAPES: Final[Mapping[str, Shape]] = MappingProxyType(
    {
        f"{group}: {name}": shape
        for group, shapes in {
            "length": LENGTHS,
            "transfer": CODINGS,
            "chunk": CHUNKS,
            "head": HEADS,
            "path": PATHS,
            "version": VERSIONS,
            "encoding": ENCODINGS,
        }.items()
        for name, shape in shapes.items()
    }
)
