"""A URL of several hosts, as URLs of one host each."""


def split_hosts(url: str) -> list[str]:
    """`postgresql://user@a:1,b:2/name` names two servers, one of which may be written to."""
    scheme, mark, rest = url.partition("://")
    end = min((place for place in map(rest.find, "/?#") if place >= 0), default=len(rest))
    credentials, at, hosts = rest[:end].rpartition("@")
    return [f"{scheme}{mark}{credentials}{at}{host}{rest[end:]}" for host in hosts.split(",")]
